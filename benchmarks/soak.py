"""Runs half an hour of complete and interrupted epochs, resumes and killed workers, and checks that nothing grows.

`make soak`. Memory, files, threads and processes are measured between epochs. The medians of the second and of the last
tenth of the measurements are compared; the first tenth is warm-up.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import psutil

import penstock
from benchmarks.document import Finding, lines_of, show, write
from benchmarks.result import Line, Table
from penstock.testing import IMAGENET, make_shards

GROWTH_MB = 16
"""Growth of memory that is accepted: allocators vary by less than this."""
NOTE = (
    "The epochs end as in practice: complete, interrupted, interrupted and resumed, or with a killed worker. After "
    "each of them, one complete epoch runs, and then the process is measured."
)


@dataclass(frozen=True)
class Usage:
    """Memory, files, threads and processes in use.

    Pages of libraries are left out, because their share of this process depends on the other programs that run.
    """

    own_memory_bytes: int
    """Anonymous pages of this process: heap, stacks, everything that malloc has taken."""
    tree_memory_bytes: int
    """Anonymous pages of this process and its workers, and shared memory (the arena and the slabs)."""
    files: int
    threads: int
    processes: int


def measure_usage() -> Usage:
    gc.collect()
    process = psutil.Process()
    children = process.children(recursive=True)
    own = memory_by_kind(process.pid)
    tree = Counter(own)
    for child in children:
        with suppress(OSError):  # the child has just ended
            tree.update(memory_by_kind(child.pid))
    return Usage(
        own["Pss_Anon"],
        tree["Pss_Anon"] + tree["Pss_Shmem"],
        process.num_fds(),
        threading.active_count(),
        len(children),
    )


def memory_by_kind(pid: int) -> dict[str, int]:
    """Return the proportional share of the process in each kind of memory (PSS), in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    named = (line.split() for line in lines if line.startswith("Pss_"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in named}


def run_epoch(loader: penstock.Loader, rng: random.Random) -> str:
    """Run an epoch whose end is chosen at random, and return the kind of its end."""
    kind = rng.choice(["complete", "complete", "interrupted", "resumed", "with a killed worker"])
    last = len(loader) if kind == "complete" else rng.randrange(1, len(loader))
    for number, _ in enumerate(loader, 1):
        if number == last:
            break
    if kind == "resumed":
        state = loader.state_dict()
        loader.load_state_dict(state)
        for _ in loader:
            pass
    if kind == "with a killed worker":
        batches = iter(loader)
        next(batches)
        workers = psutil.Process().children()
        if workers:
            os.kill(rng.choice(workers).pid, signal.SIGKILL)
        for _ in batches:
            pass
    return kind


def soak(folder: Path, minutes: float) -> tuple[list[Usage], Counter[str]]:
    """Run epochs for so many minutes; return the measurements and the number of epochs by kind."""
    rng = random.Random(0)
    shards = make_shards(folder, IMAGENET, shards=4, samples=512, scale=0.5)
    batch_fields = {"image": penstock.Image(".jpg", size=112, fit="crop"), "label": penstock.Label(".cls")}
    loader = penstock.Loader(
        shards, batch_fields, 32, shuffle=True, num_workers=2, engine=penstock.EngineOptions(memory_bytes=512 << 20)
    )
    measurements, kinds = [], Counter[str]()
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        kinds[run_epoch(loader, rng)] += 1
        for _ in loader:  # every measurement then finds the engine in the same state: after a complete epoch
            pass
        measurements.append(measure_usage())
    loader.close()
    return measurements, kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measurements, kinds = soak(Path(name), options.minutes)
    epochs = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    title = f"{options.minutes:g} minutes, {len(measurements)} measurements between epochs"
    found: dict[str, list[Finding]] = {"soak": [*growth(measurements), Table(title, ("epochs",), [(epochs,)], NOTE)]}
    show(found)
    if options.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


def growth(measurements: Sequence[Usage]) -> Iterator[Line]:
    """Yield the growth of each figure from the second tenth of the measurements to the last; the first is warm-up."""
    tenth = max(1, len(measurements) // 10)
    for place, field in enumerate(fields(Usage)):
        early, late = (
            median(astuple(each)[place] for each in part)
            for part in (measurements[tenth : 2 * tenth], measurements[-tenth:])
        )
        what = field.name.removesuffix("_bytes").replace("_", " ")
        if field.name.endswith("bytes"):
            sizes = f"{late / 1e6:,.1f} MB", f"early: {early / 1e6:,.1f} MB"
            yield Line(f"{what}: growth in MB", *sizes, (late - early) / 1e6, GROWTH_MB, "at most")
        else:
            yield Line(f"{what}: growth", f"{late:g}", f"early: {early:g}", late - early, 0, "at most")


if __name__ == "__main__":
    main()
