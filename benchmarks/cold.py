"""Reads raw arrays from files that are not in the page cache: the loader against plain sequential reads."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

import penstock
from benchmarks.result import Line, in_turns, median_ratio
from penstock.storage.mounts import identify_storage
from penstock.storage.page_cache import ColdFile, ReadMethod, choose_method, drop_pages
from penstock.testing import tar_bytes

TARGET = 0.9
SHARDS = 40
SAMPLES = 64
"""Samples per shard."""
SHAPE = (256, 64, 64)
"""The shape of a float16 sample of 2 MiB. All samples have 5 GiB, so that the first and the last read matter little."""
BATCH = 16
READ_BYTES = 2 << 20
ROUNDS = 5
TRIES = 8
"""Attempts to drop the pages of a file: the kernel keeps a page that is in use at that moment."""


def measure() -> Iterator[Line]:
    with tempfile.TemporaryDirectory(dir=".") as name:
        shards = _write_shards(Path(name))
        variants = _read_variants(shards)
        plain_reads = [partial(_read_all, shards, *variant) for variant in variants]
        *plain, ours = in_turns([*plain_reads, lambda: _loader_rate(shards)], ROUNDS)
        device = max(plain, key=median)  # the best variant over all rounds; the best of each round would be luck
        method, in_flight = variants[plain.index(device)]
        yield Line(
            "cold files, raw arrays",
            f"{median(ours):.0f} MB/s",
            f"sequential reads ({method}, {in_flight} at a time): {median(device):.0f} MB/s",
            median_ratio(ours, device),
            TARGET,
            "at least",
        )


def _write_shards(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    shards = []
    for number in range(SHARDS):
        members = {}
        for sample in range(SAMPLES):
            data = BytesIO()
            np.save(data, rng.integers(0, 1 << 14, SHAPE, np.uint16).view(np.float16))
            members[f"{number:02d}{sample:04d}.npy"] = data.getvalue()
        path = folder / f"raw-{number:02d}.tar"
        path.write_bytes(tar_bytes(members.items()))
        shards.append(path)
    os.sync()  # pages that are not written yet cannot be dropped
    return shards


def _make_cold(shards: list[Path]) -> None:
    for shard in shards:
        if not any(drop_pages(shard) for _ in range(TRIES)):
            raise RuntimeError(f"the pages of {shard} cannot be dropped from the page cache")


def _read_variants(shards: list[Path]) -> list[tuple[ReadMethod, int]]:
    """Return the methods of large sequential reads: bypassing the page cache or through it, one or four at a time."""
    methods = {choose_method(shards[0], identify_storage(shards[0])), ReadMethod.DROPPED}
    return list(product(sorted(methods), (1, 4)))


def _read_all(shards: list[Path], method: ReadMethod, in_flight: int) -> float:
    _make_cold(shards)
    total = sum(shard.stat().st_size for shard in shards)
    with ThreadPoolExecutor(in_flight) as pool:
        start = time.perf_counter()
        list(pool.map(lambda shard: _read_one(shard, method), shards))
        return total / (time.perf_counter() - start) / 1e6


def _read_one(shard: Path, method: ReadMethod) -> None:
    with ColdFile(shard, method) as file, mmap.mmap(-1, READ_BYTES) as buffer:
        file.drop(random=False)
        for offset in range(0, file.size_bytes, READ_BYTES):
            file.read_into(buffer, offset, READ_BYTES)


def _loader_rate(shards: list[Path]) -> float:
    """Return the MB/s of the second epoch. In the first one, the first use of the loader's memory costs page faults."""
    fields = {"array": penstock.Array(".npy")}
    loader = penstock.Loader(
        shards, fields, BATCH, shuffle=True, device="numpy", reading=penstock.ReadOptions(page_cache=False)
    )
    for _ in loader:
        pass
    _make_cold(shards)
    start = time.perf_counter()
    delivered = sum(batch["array"].nbytes for batch in loader)
    elapsed = time.perf_counter() - start
    loader.close()
    return delivered / elapsed / 1e6
