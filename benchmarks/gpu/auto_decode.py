"""`decode="auto"` beside the cores alone, where they are late; where they are not, it is a row of the training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.gpu.copies import step_of
from benchmarks.gpu.stream import Batch, side_by_side
from benchmarks.gpu.throughput import Fields, Material, beside, our_stream
from benchmarks.result import Line
from penstock import Image

STEP_S, BATCH = 0.01, 32
A_TURN_S, WARM_S = 2.0, 10.0
"""A move is judged by 28 batches."""


def measure(material: Material) -> Iterator[Line]:
    image, step = Image(".jpg", size=1024, quality="exact"), step_of(STEP_S)

    def train(batch: Batch) -> None:
        step()
        batch["image"].view(-1)[:8].float().sum()

    with ExitStack() as stack:
        fields: list[Fields] = [{"image": replace(image, decode=decode)} for decode in ("auto", "cpu")]
        streams = [stack.enter_context(our_stream(material.sa1b(), each, BATCH, train, WARM_S)) for each in fields]
        auto, cores = side_by_side(streams, A_TURN_S)
    yield beside("auto: large JPEGs, steps of 10 ms, for which the cores are late", auto, "cores alone", cores, 1.3)
