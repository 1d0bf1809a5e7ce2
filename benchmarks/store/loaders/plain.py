"""No loader at all: the objects in ranges, so many requests at a time, and what comes is thrown away.

It is what the store gives, to whom it costs nothing to take it. `workers` are the requests in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

import obstore
from obstore.store import S3Store

from benchmarks.peers.task import Batch, MakeBatches
from benchmarks.store.objects import BUCKET
from benchmarks.store.task import Task

PARTS = 32
"""Of a shard: ranges of 2 MiB."""


def prepare(task: Task) -> MakeBatches:
    store = S3Store(BUCKET, virtual_hosted_style_request=False)
    ranges = [piece for shard, name in enumerate(task.size.names) for piece in _ranges(task, store, shard, name)]

    def read(piece: tuple[str, int, int, list[str]]) -> list[str]:
        name, start, stop, keys = piece
        assert len(obstore.get_range(store, name, start=start, end=stop)) == stop - start
        return keys

    def make_batches() -> Iterator[Batch]:
        with ThreadPoolExecutor(task.workers) as pool:
            for done in as_completed([pool.submit(read, piece) for piece in ranges]):
                yield {"__key__": done.result()}

    return make_batches


def _ranges(task: Task, store: S3Store, shard: int, name: str) -> Iterator[tuple[str, int, int, list[str]]]:
    """Name, first and last byte; and, so that samples can be counted, the keys for which such a range stands."""
    size, keys = obstore.head(store, name)["size"], task.size.keys_of(shard)
    for part in range(PARTS):
        bytes_, samples = ([total * at // PARTS for at in (part, part + 1)] for total in (size, len(keys)))
        yield name, bytes_[0], bytes_[1], keys[samples[0] : samples[1]]
