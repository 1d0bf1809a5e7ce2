"""The module that runs a plain `torch.utils.data.DataLoader` over tar files, written as in the field reports.

It is an iterable dataset: each worker takes every n-th shard, streams it with `tarfile`, keeps parts until the sample
is complete, and decodes images with Pillow and arrays with `np.load`. It has one advantage over the usual code: it
keeps no buffer of decoded samples for shuffling, which would cost memory and delay the first batch.
This module imports torch, so only child processes import it.
"""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from penstock.bench.loader_run import measure, print_run
from penstock.bench.side_by_side import PLAIN_NAME
from penstock.bench.workload import BenchmarkWorkload, load_workload
from penstock.storage.object_store.remote_file import RemoteFile
from penstock.storage.object_store.url import is_remote

PREFETCH = 2
"""Batches that each worker prefetches: the value in the field reports, and torch's default."""


class PlainTars(IterableDataset[dict[str, Any]]):
    """The samples of tar files, one after the other."""

    def __init__(self, workload: BenchmarkWorkload) -> None:
        self._workload = workload
        self._used = {field.suffix for field in workload.fields}
        self._longest_first = sorted({*workload.suffixes, *self._used}, key=len, reverse=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        shards = self._workload.shards
        own_shards = shards if worker is None else shards[worker.id :: worker.num_workers]
        for shard in own_shards:
            yield from self._samples(shard)

    def _samples(self, shard: str) -> Iterator[dict[str, Any]]:
        incomplete: dict[str, dict[str, bytes]] = {}
        with _open_tar(shard) as tar:
            for member in tar:
                key, suffix = self._split(member.name)
                file = tar.extractfile(member) if suffix in self._used else None
                if file is None:
                    continue
                parts = incomplete.setdefault(key, {})
                parts[suffix] = file.read()
                if len(parts) == len(self._used):
                    yield self._decode(key, incomplete.pop(key))

    def _split(self, name: str) -> tuple[str, str]:
        suffix = next((suffix for suffix in self._longest_first if name.endswith(suffix)), "")
        return name.removesuffix(suffix), suffix

    def _decode(self, key: str, parts: dict[str, bytes]) -> dict[str, Any]:
        sample: dict[str, Any] = {"__key__": key}
        arrays: dict[str, Any] = {}  # an NPZ is opened once, however many of its arrays are used
        for field in self._workload.fields:
            data = io.BytesIO(parts[field.suffix])
            if field.kind == "image":
                sample[field.name] = _decode_image(data, field.size)
                continue
            if field.suffix not in arrays:
                arrays[field.suffix] = np.load(data)
            loaded = arrays[field.suffix]
            sample[field.name] = torch.from_numpy(loaded if field.key is None else loaded[field.key])
        return sample


def _open_tar(shard: str) -> tarfile.TarFile:
    """Open a shard; an object of a store through a stream with readahead, since tarfile itself reads only files."""
    if is_remote(shard):
        return tarfile.open(fileobj=RemoteFile(shard).stream(), mode="r|*")
    return tarfile.open(shard, "r|*")


def _decode_image(data: io.BytesIO, size: int) -> torch.Tensor:
    image = Image.open(data).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def batches(workload: BenchmarkWorkload, workers: int) -> Iterable[dict[str, Any]]:
    """Return a loader of one epoch."""
    return DataLoader(
        PlainTars(workload),
        batch_size=workload.batch_size,
        num_workers=workers,
        prefetch_factor=PREFETCH,
        persistent_workers=True,
        worker_init_fn=_use_one_thread,
    )


def _use_one_thread(_worker: int) -> None:
    torch.set_num_threads(1)


def main(workload_file: str, workers: int) -> None:
    """Run the loader once and print the result."""
    workload = load_workload(workload_file)
    print_run(measure(PLAIN_NAME, workers, lambda: batches(workload, workers), lambda batch: list(batch["__key__"])))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
