"""Indexing against stdlib tarfile: both list every member of the same shard; ours also pairs them."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.result import Line, in_turns, median_ratio, seconds
from benchmarks.sparse import sparse_shard
from penstock.shards.scan import scan

TARGET = 10.0
ROUNDS = 9
SETS = {
    "SA-1B-like": (4000, ((".jpg", 600_000), ("_features.npz", 1_730_000))),
    "ImageNet-like": (20_000, ((".jpg", 110_000), (".cls", 3))),
    "ReID-like": (20_000, ((".jpg", 9_000), (".json", 80))),
}


def measure() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder:
        for name, (samples, parts) in SETS.items():
            path = Path(folder) / f"{name}.tar"
            members = sparse_shard(
                path, ((f"sa_{number:07d}{suffix}", size) for number in range(samples) for suffix, size in parts)
            )
            yield _compare(name, path, members)


def _compare(name: str, path: Path, members: int) -> Line:
    def ours() -> float:
        return members / seconds(lambda: scan(path))

    def stdlib() -> float:
        return members / seconds(lambda: _list(path))

    mine, theirs = in_turns([ours, stdlib], ROUNDS)
    return Line(
        f"index {name} ({members} members)",
        f"{median(mine):,.0f} members/s",
        f"tarfile: {median(theirs):,.0f}",
        median_ratio(mine, theirs),
        TARGET,
        "at least",
    )


def _list(path: Path) -> int:
    with tarfile.open(path, "r:") as tar:
        return len(tar.getmembers())
