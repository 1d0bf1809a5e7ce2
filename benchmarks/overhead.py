"""Measures what watching costs a training: microseconds per step on the main thread, and the share of a 10 ms step.

A training with everything that `penstock run` adds to a process and the same training without it run in two processes,
which take turns. Both are forked from one process, so that their memory layout is the same. A turn counts with the mean
of its steps: of short steps, one in 128 is profiled (its phases are timed), which costs many times more than the other
steps, and a turn contains one of those. Over the turns the median counts, because the machine is slow at times.

Adding and removing the hooks in a single process would measure how the interpreter adapts to changed code. Processes
that run one after the other differ by more than the cost that is measured.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.result import Line, in_turns, rate
from penstock.watcher.step_sampling import FIRST_OF_LOADER, INTERVAL

SUBMODULES = 50
TURN = INTERVAL
"""Steps of a turn: one that is profiled, and those that are not."""
TURNS = 16
WARM_UP = max(2, 2 * FIRST_OF_LOADER // TURN)
"""Turns that do not count. The first steps of a run are all profiled and search for modules, and the interpreter
specialises its code."""
ROUNDS = 5
WATCH_ROUNDS = 25
STEP_S = 0.010
EXTRA_US = 20.0
SHARE = 0.01


def measure() -> Iterator[Line]:
    for step_s, description in ((0.0, "steps back to back"), (STEP_S, "steps of 10 ms")):
        pairs = [_in_child(step_s) for _ in range(ROUNDS)]
        plain, extra = (median(numbers) for numbers in zip(*pairs, strict=True))
        yield _extra(f"penstock run, 50 submodules, {description}: extra µs per step, mean", plain, extra)
    yield Line("penstock run: share of a step of 10 ms", f"{extra / STEP_S:.2%}", "", extra / STEP_S, SHARE, "at most")
    with tempfile.TemporaryDirectory() as folder:
        bare, watched = in_turns([_bare, lambda: _watched(Path(folder, "watch.jsonl"))], WATCH_ROUNDS)
    each = median(after - before for after, before in zip(watched, bare, strict=True))
    yield _extra("penstock.watch, bare iterable: extra µs per step", median(bare), each)


def _extra(what: str, plain_s: float, extra_s: float) -> Line:
    return Line(
        what, f"{extra_s * 1e6:.1f} µs", f"unwatched: {plain_s * 1e6:.1f} µs", extra_s * 1e6, EXTRA_US, "at most"
    )


def _in_child(step_s: float) -> tuple[float, float]:
    """Compare in a fresh process; return CPU seconds per step without watching, and the seconds that watching adds."""
    command = [sys.executable, "-m", "benchmarks.overhead", str(step_s)]
    plain, extra = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-2:]
    return float(plain), float(extra)


def _compare(step_s: float) -> tuple[float, float]:
    """Return the medians, over the turns, of the mean without watching and of the difference within a turn.

    If the machine is slow for a moment, both sides of a turn are.
    """
    import torch

    torch.set_num_threads(1)
    rounds = int(rate(lambda: _work(1), 0.5) * step_s)
    fork = multiprocessing.get_context("fork")
    sides = []
    for watched in (False, True):
        parent_end, child_end = fork.Pipe()
        process = fork.Process(target=_train, args=(watched, rounds, child_end))
        process.start()
        sides.append((process, parent_end))
    turns = [[_turn(pipe) for _, pipe in sides] for _ in range(TURNS)][WARM_UP:]
    for process, pipe in sides:
        pipe.send("end")
        process.join()
    return median(plain for plain, _ in turns), median(watched - plain for plain, watched in turns)


def _turn(pipe: Connection) -> float:
    pipe.send("go")
    steps_s: list[float] = pipe.recv()
    return fmean(steps_s)


def _train(watched: bool, rounds: int, pipe: Connection) -> None:
    """Train, and send the main thread's CPU seconds of each step; the work that fills the step up is not counted."""
    import torch
    from torch import nn

    from penstock.watcher.hooks import install
    from penstock.watcher.start import WatchedRun

    model = nn.Sequential(nn.Linear(4, 1), *(nn.Identity() for _ in range(SUBMODULES - 1)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.zeros(1, 4)
    # arrays instead of tensors: a tensor comes through a socket, which costs and varies more than the watching
    loader: Iterable[Any] = torch.utils.data.DataLoader(
        range(TURN * TURNS),  # type: ignore[arg-type]
        num_workers=1,
        prefetch_factor=TURN,
        collate_fn=np.array,
    )
    steps_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        watching = WatchedRun(Path(folder, "run.jsonl")) if watched else None
        if watching is not None:
            install(watching)
        pipe.recv()
        since = time.thread_time()
        for _ in loader:
            loss = model(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps_s.append(time.thread_time() - since)
            _work(rounds)
            if len(steps_s) == TURN:
                pipe.send(steps_s)
                steps_s = []
                pipe.recv()
                _stay_on_one_core()
            since = time.thread_time()
        if watching is not None:
            watching.close()


def _stay_on_one_core() -> None:
    """Bind this thread to the core that the other side uses too, because cores differ."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _work(rounds: int) -> None:
    """Do a fixed amount of work. If it waited for a time instead, the cost of watching could vanish in the wait."""
    for _ in range(rounds):
        sum(range(1000))


def _bare() -> float:
    return _per_batch(range(1000))


def _watched(record: Path) -> float:
    from penstock.watcher.watch import watch

    with watch(range(1000), record=record, live=False) as batches:
        return _per_batch(batches)


def _per_batch(batches: Iterable[int]) -> float:
    times = [time.thread_time() for _ in batches]
    return median(after - before for before, after in pairwise(times))


if __name__ == "__main__":
    print(*_compare(float(sys.argv[1])))
