"""litdata on chunks of its own format with the same bytes, in the same store; the conversion is not timed.

It downloads chunks to a folder (in /dev/shm if that exists), which is empty at the start of each run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset, optimize
from litdata.streaming import downloader

from benchmarks.peers.data import once
from benchmarks.peers.task import Batch, MakeBatches
from benchmarks.store.objects import BUCKET, Size, folder_of, samples_of
from benchmarks.store.task import CREDENTIALS, Task, stacked

PREFETCH = 4
CHUNK = "64MB"
CHUNKS = "litdata"
MEMORY = Path("/dev/shm")


def prepare(task: Task) -> MakeBatches:
    os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")  # the check would query the package index
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # litdata's own client options override AWS_ALLOW_HTTP
    once(folder_of(task.size) / CHUNKS, partial(_convert, task.size))
    options = {
        "endpoint_url": task.endpoint,
        "aws_access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }
    downloads = tempfile.TemporaryDirectory(prefix="penstock-litdata-", dir=MEMORY if MEMORY.is_dir() else None)

    def make_batches() -> Iterator[Batch]:
        with downloads as cache:
            dataset = StreamingDataset(
                input_dir=f"s3://{BUCKET}/{CHUNKS}",
                cache_dir=cache,
                storage_options=options,
                shuffle=False,
                drop_last=False,
            )
            yield from _loader(dataset, task)

    return make_batches


def _loader(dataset: StreamingDataset, task: Task) -> Iterable[Batch]:
    return StreamingDataLoader(  # type: ignore[no-any-return]
        dataset,
        batch_size=task.size.batch_size,
        num_workers=task.workers,
        prefetch_factor=PREFETCH,
        collate_fn=_batch,
    )


def _batch(samples: Sequence[dict[str, Any]]) -> Batch:
    return stacked((sample["key"], sample["npy"]) for sample in samples)


def _convert(size: Size, folder: Path) -> None:
    shards = list(range(size.shards))
    optimize(partial(_items, size), shards, str(folder), chunk_bytes=CHUNK, num_workers=1, verbose=False)


def _items(size: Size, shard: int) -> Iterator[dict[str, Any]]:
    for key, data in samples_of(size, shard):
        yield {"key": key, "npy": data}
