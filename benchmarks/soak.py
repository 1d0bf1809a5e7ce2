"""`make soak`: half an hour of epochs, broken passes, resumes and killed workers. Nothing may grow.

Samples are taken between passes; the medians of the second tenth and of the last are compared (the first is warm-up).
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
"""What counts as no growth of memory: below it, allocators breathe."""
NOTE = (
    "Epochs that end as they do in life: whole, broken off, resumed, with a worker killed. After each, one whole "
    "epoch, then a look."
)


@dataclass(frozen=True)
class Look:
    """Pages of libraries are left out: whether they count as our own depends on what other programs run just now."""

    own_memory_bytes: int
    """Anonymous pages of this process: heap, stacks, everything that malloc ever took."""
    tree_memory_bytes: int
    """The same of all workers too, and the arena and the slabs."""
    files: int
    threads: int
    processes: int


def look() -> Look:
    gc.collect()
    us = psutil.Process()
    children = us.children(recursive=True)
    own = pages(us.pid)
    tree = Counter(own)
    for child in children:
        with suppress(OSError):  # it has just gone
            tree.update(pages(child.pid))
    return Look(
        own["Pss_Anon"], tree["Pss_Anon"] + tree["Pss_Shmem"], us.num_fds(), threading.active_count(), len(children)
    )


def pages(pid: int) -> dict[str, int]:
    """Proportional shares by kind, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    named = (line.split() for line in lines if line.startswith("Pss_"))
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in named}


def one_pass(loader: penstock.Loader, dice: random.Random) -> str:
    """A whole epoch, or one that ends as they do in life."""
    kind = dice.choice(["whole", "whole", "break", "resume", "kill"])
    last = len(loader) if kind == "whole" else dice.randrange(1, len(loader))
    for number, _ in enumerate(loader, 1):
        if number == last:
            break
    if kind == "resume":
        state = loader.state_dict()
        loader.load_state_dict(state)
        for _ in loader:
            pass
    if kind == "kill":
        passes = iter(loader)
        next(passes)
        workers = psutil.Process().children()
        if workers:
            os.kill(dice.choice(workers).pid, signal.SIGKILL)
        for _ in passes:
            pass
    return kind


def soak(folder: Path, minutes: float) -> tuple[list[Look], Counter[str]]:
    dice = random.Random(0)
    shards = make_shards(folder, IMAGENET, shards=4, samples=512, scale=0.5)
    fields_of = {"image": penstock.Image(".jpg", size=112, fit="crop"), "label": penstock.Label(".cls")}
    loader = penstock.Loader(
        shards, fields_of, 32, shuffle=True, num_workers=2, engine=penstock.EngineOptions(memory_bytes=512 << 20)
    )
    looks, kinds = [], Counter[str]()
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        kinds[one_pass(loader, dice)] += 1
        for _ in loader:  # so that every look finds the same: an engine that has just finished a pass
            pass
        looks.append(look())
    loader.close()
    return looks, kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        looks, kinds = soak(Path(name), wanted.minutes)
    passes = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    title = f"{wanted.minutes:g} minutes, {len(looks)} looks between passes"
    found: dict[str, list[Finding]] = {"soak": [*growth(looks), Table(title, ("passes",), [(passes,)], NOTE)]}
    show(found)
    if wanted.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


def growth(looks: Sequence[Look]) -> Iterator[Line]:
    """From the second tenth to the last; the first is warm-up."""
    tenth = max(1, len(looks) // 10)
    for place, field in enumerate(fields(Look)):
        early, late = (
            median(astuple(one)[place] for one in part) for part in (looks[tenth : 2 * tenth], looks[-tenth:])
        )
        what = field.name.removesuffix("_bytes").replace("_", " ")
        if field.name.endswith("bytes"):
            sizes = f"{late / 1e6:,.1f} MB", f"early: {early / 1e6:,.1f} MB"
            yield Line(f"{what}: growth in MB", *sizes, (late - early) / 1e6, GROWTH_MB, "at most")
        else:
            yield Line(f"{what}: growth", f"{late:g}", f"early: {early:g}", late - early, 0, "at most")


if __name__ == "__main__":
    main()
