"""The rival: a plain `torch.utils.data.DataLoader` over tar files, as the field reports write it.

An iterable dataset; each worker takes every n-th shard, streams it with `tarfile`, keeps parts until their partners
come, decodes pictures with Pillow and arrays with `np.load`. Kept as plain as it is met, but for one thing in its
favour: no buffer of decoded samples for shuffling, which costs memory and a late first batch.
Imports torch, so only child processes import it.
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

from penstock.bench.race import PLAIN_NAME
from penstock.bench.trial import measure, print_trial
from penstock.bench.workload import BenchmarkWorkload, load_workload
from penstock.storage.object_store.remote_file import RemoteFile
from penstock.storage.object_store.url import is_remote

PREFETCH = 2
"""Batches ahead per worker: the reports' value, and torch's default."""


class PlainTars(IterableDataset[dict[str, Any]]):
    """Samples of tar files, one after the other."""

    def __init__(self, course: BenchmarkWorkload) -> None:
        self._course = course
        self._wanted = {field.suffix for field in course.fields}
        self._longest_first = sorted({*course.suffixes, *self._wanted}, key=len, reverse=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        shards = self._course.shards
        mine = shards if worker is None else shards[worker.id :: worker.num_workers]
        for shard in mine:
            yield from self._samples(shard)

    def _samples(self, shard: str) -> Iterator[dict[str, Any]]:
        waiting: dict[str, dict[str, bytes]] = {}
        with _opened(shard) as tar:
            for member in tar:
                key, suffix = self._split(member.name)
                file = tar.extractfile(member) if suffix in self._wanted else None
                if file is None:
                    continue
                parts = waiting.setdefault(key, {})
                parts[suffix] = file.read()
                if len(parts) == len(self._wanted):
                    yield self._decode(key, waiting.pop(key))

    def _split(self, name: str) -> tuple[str, str]:
        suffix = next((suffix for suffix in self._longest_first if name.endswith(suffix)), "")
        return name.removesuffix(suffix), suffix

    def _decode(self, key: str, parts: dict[str, bytes]) -> dict[str, Any]:
        sample: dict[str, Any] = {"__key__": key}
        arrays: dict[str, Any] = {}  # an NPZ is opened once, however many of its arrays are wanted
        for field in self._course.fields:
            data = io.BytesIO(parts[field.suffix])
            if field.kind == "image":
                sample[field.name] = _picture(data, field.size)
                continue
            if field.suffix not in arrays:
                arrays[field.suffix] = np.load(data)
            loaded = arrays[field.suffix]
            sample[field.name] = torch.from_numpy(loaded if field.key is None else loaded[field.key])
        return sample


def _opened(shard: str) -> tarfile.TarFile:
    """From a store through a stream that fetches ahead: tarfile itself reads files only."""
    if is_remote(shard):
        return tarfile.open(fileobj=RemoteFile(shard).stream(), mode="r|*")
    return tarfile.open(shard, "r|*")


def _picture(data: io.BytesIO, size: int) -> torch.Tensor:
    picture = Image.open(data).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def batches(course: BenchmarkWorkload, workers: int) -> Iterable[dict[str, Any]]:
    """One epoch."""
    return DataLoader(
        PlainTars(course),
        batch_size=course.batch_size,
        num_workers=workers,
        prefetch_factor=PREFETCH,
        persistent_workers=True,
        worker_init_fn=_one_thread,
    )


def _one_thread(_worker: int) -> None:
    torch.set_num_threads(1)


def main(course_path: str, workers: int) -> None:
    """Run once and print the trial."""
    course = load_workload(course_path)
    print_trial(measure(PLAIN_NAME, workers, lambda: batches(course, workers), lambda batch: list(batch["__key__"])))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
