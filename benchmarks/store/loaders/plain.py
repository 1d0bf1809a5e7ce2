"""Plain reads without a loader: ranges of the objects are requested in parallel, and the data is discarded.

This is the rate at which the store delivers to a client that does no work. `workers` is the number of requests in
flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import obstore
from obstore.store import S3Store

from benchmarks.peers.task import Batch, MakeBatches
from benchmarks.store.objects import BUCKET
from benchmarks.store.task import Task

RANGES = 32
"""Ranges that a shard is divided into: 2 MiB each."""


def prepare(task: Task) -> MakeBatches:
    store = S3Store(BUCKET, virtual_hosted_style_request=False)
    requests = [each for shard, name in enumerate(task.size.names) for each in _requests(task, store, shard, name)]

    def read(request: tuple[str, int, int, list[str]]) -> list[str]:
        name, start, stop, keys = request
        assert len(obstore.get_range(store, name, start=start, end=stop)) == stop - start
        return keys

    def make_batches() -> Iterator[Batch]:
        with ThreadPoolExecutor(task.workers) as pool:
            for done in as_completed([pool.submit(read, request) for request in requests]):
                yield {"__key__": done.result()}

    return make_batches


def _requests(task: Task, store: S3Store, shard: int, name: str) -> Iterator[tuple[str, int, int, list[str]]]:
    """Yield (object, start, stop, keys) for each range of a shard.

    The keys are an equal part of the shard's keys, so that the samples can be counted.
    """
    size, keys = obstore.head(store, name)["size"], task.size.keys_of(shard)
    for number in range(RANGES):
        bytes_, samples = ([total * at // RANGES for at in (number, number + 1)] for total in (size, len(keys)))
        yield name, bytes_[0], bytes_[1], keys[samples[0] : samples[1]]
