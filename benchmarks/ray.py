"""Compares packing on a local Ray cluster with packing in worker processes: the same tasks, cores and bytes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import pack
from benchmarks.result import Line, Table, in_turns, median_ratio
from penstock.shards.cluster.join import LOCAL, join_cluster
from penstock.shards.cluster.ray_runner import RayRunner
from penstock.shards.task_pool import use_task_runner
from penstock.testing import SA1B, sample_parts

TARGET = 0.9
ROUNDS = 5


def measure() -> Iterator[Line | Table]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pack.write_loose_files(
            folder / "loose", [sample_parts(SA1B, number) for number in range(pack.DISTINCT)], pack.SAMPLES
        )
        start = time.perf_counter()
        with join_cluster(LOCAL) as cluster:
            started_s = time.perf_counter() - start
            runner = RayRunner(cluster)
            start = time.perf_counter()
            list(runner(len, [""] * cluster.cpus))
            warm_s = time.perf_counter() - start
            with_processes, with_ray = in_turns(
                [lambda: pack.pack_rate(folder), lambda: _pack_with_ray(folder, runner)], ROUNDS
            )
    yield Line(
        f"pack {pack.SAMPLES} SA-1B-like samples on Ray, one node",
        f"{median(with_ray):.0f} samples/s",
        f"worker processes: {median(with_processes):.0f}",
        median_ratio(with_ray, with_processes),
        TARGET,
        "at least",
    )
    yield Table(
        "Start of a local Ray cluster before the first task",
        ("what", "seconds"),
        [("Ray imported and started", f"{started_s:.1f}"), ("its workers started", f"{warm_s:.1f}")],
        "These times occur once and are not part of the figures above; joining a running cluster takes less time.",
    )


def _pack_with_ray(folder: Path, runner: RayRunner) -> float:
    with use_task_runner(runner):
        return pack.pack_rate(folder)
