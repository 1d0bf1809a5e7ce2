"""No loader at all: our decode functions over bytes already in memory, each thread into one sample's slot.

Nothing is read, batched or handed over, so it is what the cores could do, as far as threads can use them: where samples
are small, the interpreter's lock holds the threads back, and a loader with processes is faster than this.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import cv2

from benchmarks.peers.data import Parts, samples_in
from benchmarks.peers.decode import empty_batch, with_keys
from benchmarks.peers.task import Batch, MakeBatches, Task

RUNS_PER_BATCH = 8
"""Short runs: the clock's first and last one count little, however few batches there are."""


def prepare(task: Task) -> MakeBatches:
    """Reads all shards into memory."""
    cv2.setNumThreads(0)
    kind, size = task.kind, max(1, task.batch_size // RUNS_PER_BATCH)
    samples = [sample for shard in task.shards for sample in samples_in(kind, shard)]
    slots = threading.local()

    def decode(sample: tuple[str, Parts]) -> str:
        if not hasattr(slots, "of"):
            slots.of = empty_batch(kind, 1)
        key, parts = sample
        for name, field in kind.fields.items():
            suffix = field.suffixes[0]
            field.decode_into(suffix, memoryview(parts[suffix]), slots.of[name][0, ...])
        return key

    def decode_run(run: list[tuple[str, Parts]]) -> list[str]:
        return [decode(sample) for sample in run]

    def make_batches() -> Iterator[Batch]:
        nothing = empty_batch(kind, size)
        runs = [samples[at : at + size] for at in range(0, len(samples), size)]
        with ThreadPoolExecutor(task.workers) as pool:
            for keys in pool.map(decode_run, runs):
                yield with_keys(keys, nothing)

    return make_batches
