"""Measures the fixed cost of a rank's loader, with one rank and with eight ranks on one machine.

The fixed cost of a rank is the CPU time of its threads and worker processes, from before `Loader(…)` to its first
batch, without the time for decoding. It contains the index (built by a scan, or read if it exists), the order, the
plan, arena, slabs and workers. The ranks are forked from a process that has imported everything, and begin together.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import penstock
from benchmarks.result import Line, Table, in_turns, median_ratio
from benchmarks.sparse_shard import sparse_shard
from penstock.core.ranks import local_rank

TARGET = 1.2
RANKS = 8
ROUNDS = 7
SHARDS, SAMPLES = 64, 1500
"""The size of an ImageNet-like dataset of 10 GB, written as sparse files."""
PARTS = ((".jpg", 110_000), (".cls", 3))
BATCH = 64
"""Samples of a batch over all ranks."""
NOTE = (
    "CPU seconds of one rank from before `Loader(…)` to its first batch without decoding, mean over the ranks. Wall is "
    "the time until the last rank has its batch. *Not indexed*: no shard has an index yet. *Indexed*: all shards have "
    "one, and every rank reads them. A rank with more than one core starts worker processes, and one of eight ranks on "
    "few cores decodes in a thread; in the last line both sides use a thread. Eight ranks on fewer cores wait for each "
    "other, so their wall time depends on the machine, while their CPU time is what a rank needs."
)


@dataclass(frozen=True)
class Case:
    """One situation in which the cost is measured."""

    what: str
    indexed: bool
    settings: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("not indexed", indexed=False),
    Case("indexed", indexed=True),
    Case(
        "indexed, one thread each",
        indexed=True,
        settings={"engine": penstock.EngineOptions("thread"), "num_workers": 1},
    ),
)


class Cost:
    """The mean CPU seconds of a rank, and the wall seconds until the last rank had its first batch."""

    def __init__(self, ranks: list[dict[str, float]]) -> None:
        self.cpu_s = mean(rank["cpu_s"] for rank in ranks)
        self.wall_s = max(rank["wall_s"] for rank in ranks)


def measure() -> Iterator[Line | Table]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(SHARDS):
            names = ((f"{number:03d}{sample:05d}{suffix}", size) for sample in range(SAMPLES) for suffix, size in PARTS)
            sparse_shard(folder / f"shard-{number:03d}.tar", names)
        penstock.Loader  # noqa: B018 (imports the class before the ranks are forked)
        rows = []
        for case in CASES:
            line, row = _compare(folder, case)
            rows.append(row)
            yield line
        columns = ("shards", "one rank", f"each of {RANKS}", "wall, one", f"wall, {RANKS}")
        yield Table(f"Fixed cost of a loader, {SHARDS * SAMPLES:,} samples in {SHARDS} shards", columns, rows, NOTE)


def _compare(folder: Path, case: Case) -> tuple[Line, tuple[str, ...]]:
    walls: dict[int, list[float]] = {1: [], RANKS: []}

    def cost_of(ranks: int) -> float:
        if not case.indexed:
            for sidecar in folder.glob("*.pidx"):
                sidecar.unlink()
        found = _job(folder, ranks, case.settings)
        walls[ranks].append(found.wall_s)
        return found.cpu_s

    cost_of(1)  # the first run finds nothing in the page cache, so it does not count
    walls[1].clear()
    eight, one = in_turns([lambda: cost_of(RANKS), lambda: cost_of(1)], ROUNDS)
    line = Line(
        f"fixed cost of a rank, {case.what}",
        f"{RANKS} ranks: {median(eight):.3f} s each",
        f"one rank: {median(one):.3f} s",
        median_ratio(eight, one),
        TARGET,
        "at most",
    )
    figures = (median(one), median(eight), median(walls[1]), median(walls[RANKS]))
    return line, (case.what, *(f"{figure:.3f} s" for figure in figures))


def _job(folder: Path, ranks: int, settings: dict[str, Any]) -> Cost:
    """Start the ranks, let them begin at the same time, and return their cost."""
    begin_out, begin_in = os.pipe()
    answers = [
        _fork({"RANK": rank, "WORLD_SIZE": ranks}, folder, settings, (begin_out, begin_in)) for rank in range(ranks)
    ]
    os.close(begin_out)
    os.close(begin_in)  # the last open write end: every rank now reads the end of the pipe, and begins
    found = []
    for pid, answer in answers:
        with open(answer) as report:
            found.append(json.loads(report.read()))
        os.waitpid(pid, 0)
    return Cost(found)


def _fork(place: dict[str, int], folder: Path, settings: dict[str, Any], begin: tuple[int, int]) -> tuple[int, int]:
    answer_out, answer_in = os.pipe()
    pid = os.fork()
    if pid:
        os.close(answer_in)
        return pid, answer_out
    try:
        os.close(begin[1])
        os.environ |= {f"{prefix}{name}": str(number) for prefix in ("", "LOCAL_") for name, number in place.items()}
        os.environ["PENSTOCK_CACHE"] = str(folder)
        os.read(begin[0], 1)
        os.write(answer_in, json.dumps(_rank(folder, settings)).encode())
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def _rank(folder: Path, settings: dict[str, Any]) -> dict[str, float]:
    began, before_s = time.perf_counter(), _cpu_s()
    size = BATCH // local_rank().world_size
    shards, fields = sorted(folder.glob("*.tar")), {"label": penstock.Raw(".cls")}
    loader = penstock.Loader(shards, fields, size, shuffle=True, device="numpy", **settings)
    next(iter(loader))
    wall_s = time.perf_counter() - began
    decoding_s = loader.stats().engine.decoding_s
    loader.close()  # ends the workers, whose CPU time counts only then
    return {"cpu_s": _cpu_s() - before_s - decoding_s, "wall_s": wall_s}


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of the child processes that have ended."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
