"""Compare `decode="auto"` with decoding by the CPU cores alone, for steps so short that the cores cannot keep up.

The case in which the cores do keep up is measured in training.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.gpu.copies import make_step
from benchmarks.gpu.stream import Batch, measure_in_turns
from benchmarks.gpu.throughput import Fields, ShardSets, loader_stream, rate_line
from benchmarks.result import Line
from penstock import Image

STEP_S, BATCH = 0.01, 32
TURN_S, WARM_UP_S = 2.0, 10.0
"""The warm-up is long because `auto` moves images between the cores and the GPU in several changes, and it judges each
by 28 batches."""


def measure(shard_sets: ShardSets) -> Iterator[Line]:
    image, step = Image(".jpg", size=1024, quality="exact"), make_step(STEP_S)

    def train(batch: Batch) -> None:
        step()
        batch["image"].view(-1)[:8].float().sum()

    with ExitStack() as stack:
        variants: list[Fields] = [{"image": replace(image, decode=decode)} for decode in ("auto", "cpu")]
        streams = [
            stack.enter_context(loader_stream(shard_sets.sa1b(), fields, BATCH, train, WARM_UP_S))
            for fields in variants
        ]
        auto, cores = measure_in_turns(streams, TURN_S)
    what = "auto: large JPEGs, steps of 10 ms, too short for the cores alone"
    yield rate_line(what, auto, "cores alone", cores, 1.3)
