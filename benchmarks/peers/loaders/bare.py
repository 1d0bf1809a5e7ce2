"""A bare decode loop: threads call our decode functions on bytes in memory, each writing into memory for one sample.

Nothing is read, batched or delivered, so this is the rate of the cores alone, as far as threads can use them: with
small samples the GIL holds the threads back, and a loader with worker processes is faster.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import cv2

from benchmarks.peers.data import Parts, samples_in
from benchmarks.peers.decode import empty_batch, random_context, with_keys
from benchmarks.peers.task import Batch, MakeBatches, Task

CHUNKS_PER_BATCH = 8
"""The unit of work is a part of a batch, so that even with few batches the first and the last unit matter little."""


def prepare(task: Task) -> MakeBatches:
    """Read all shards into memory."""
    cv2.setNumThreads(0)
    kind, size = task.kind, max(1, task.batch_size // CHUNKS_PER_BATCH)
    samples = [sample for shard in task.shards for sample in samples_in(kind, shard)]
    per_thread = threading.local()

    def decode(sample: tuple[str, Parts]) -> str:
        if not hasattr(per_thread, "arrays"):
            per_thread.arrays = empty_batch(kind, 1)
        key, parts = sample
        for name, field in kind.fields.items():
            suffix = field.suffixes[0]
            field.decode_into(suffix, memoryview(parts[suffix]), per_thread.arrays[name][0, ...], random_context(field))
        return key

    def decode_chunk(chunk: list[tuple[str, Parts]]) -> list[str]:
        return [decode(sample) for sample in chunk]

    def make_batches() -> Iterator[Batch]:
        placeholder = empty_batch(kind, size)
        chunks = [samples[at : at + size] for at in range(0, len(samples), size)]
        with ThreadPoolExecutor(task.workers) as pool:
            for keys in pool.map(decode_chunk, chunks):
                yield with_keys(keys, placeholder)

    return make_batches
