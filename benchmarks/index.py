"""Compares indexing with the standard library's tarfile: both make the same table of the parts of the same shard."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.result import Line, in_turns, median_ratio, rate
from benchmarks.sparse_shard import sparse_shard
from penstock.shards.index import ShardIndex
from penstock.shards.scan import scan_shard

TARGET = 10.0
ROUNDS = 9
TURN_S = 0.1
"""Seconds for which a turn indexes the shard repeatedly, so that both sides have the same time to warm up."""
SETS = {  # shards of 0.2 to 1 GB, which is a usual size
    "SA-1B-like": (430, ((".jpg", 600_000), ("_features.npz", 1_730_000))),
    "ImageNet-like": (9_000, ((".jpg", 110_000), (".cls", 3))),
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
    def our_rate() -> float:
        return members * rate(lambda: scan_shard(path), TURN_S)

    def tarfile_rate() -> float:
        return members * rate(lambda: _index_with_tarfile(path), TURN_S)

    assert _as_dict(scan_shard(path)) == _index_with_tarfile(path)
    ours, other = in_turns([our_rate, tarfile_rate], ROUNDS)
    return Line(
        f"index {name} ({members} members)",
        f"{median(ours):,.0f} members/s",
        f"tarfile: {median(other):,.0f}",
        median_ratio(ours, other),
        TARGET,
        "at least",
    )


def _index_with_tarfile(path: Path) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the table of {key: {suffix: (offset, length)}}, made with the standard library."""
    samples: dict[str, dict[str, tuple[int, int]]] = {}
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            key, _, rest = member.name.partition(".")
            key, suffix = (key[:-9], "_features." + rest) if key.endswith("_features") else (key, "." + rest)
            samples.setdefault(key, {})[suffix] = (member.offset_data, member.size)
    return samples


def _as_dict(index: ShardIndex) -> dict[str, dict[str, tuple[int, int]]]:
    samples = map(index.sample, range(len(index)))
    return {sample.key: {part.suffix: (part.offset, part.length) for part in sample.parts} for sample in samples}
