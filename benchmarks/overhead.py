"""What watching costs the training: microseconds per step on the main thread, and their share of a step of 10 ms.

A training with and without all that `penstock run` puts into a process, in two processes that take turns, forked from
one so that their memory lies alike. Of a turn the mean counts: of short steps one in 32 has its phases looked at, which
costs many times what the others do, and a turn has one of those. Of the turns the median counts: the machine has its
moments. Putting it in and taking it out of one process would measure how the interpreter takes changes;
processes that run one after the other differ by more than what is measured.
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
from penstock.watcher.step_sampling import BLOCK, YOUNG

SUBMODULES = 50
TURN = BLOCK
"""Steps, of both kinds as they come."""
TURNS = 50
WARM_UP = 2 * YOUNG // TURN
"""Turns that do not count: the first steps of a run are all looked at, look for modules, and the interpreter learns."""
ROUNDS = 5
WATCH_ROUNDS = 25
STEP_S = 0.010
EXTRA_US = 20.0
SHARE = 0.01


def measure() -> Iterator[Line]:
    for step_s, what in ((0.0, "steps back to back"), (STEP_S, "steps of 10 ms")):
        pairs = [_in_child(step_s) for _ in range(ROUNDS)]
        plain, extra = (median(numbers) for numbers in zip(*pairs, strict=True))
        yield _extra(f"penstock run, 50 submodules, {what}: extra µs per step, mean", plain, extra)
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
    """A fresh process's answer: CPU-seconds per step without us, and what watching adds to them."""
    command = [sys.executable, "-m", "benchmarks.overhead", str(step_s)]
    plain, extra = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-2:]
    return float(plain), float(extra)


def _compare(step_s: float) -> tuple[float, float]:
    """The medians over the turns of their means; a slow moment of the machine strikes both sides of one."""
    import torch

    torch.set_num_threads(1)
    rounds = int(rate(lambda: _work(1), 0.5) * step_s)
    fork = multiprocessing.get_context("fork")
    sides = []
    for watched in (False, True):
        ours, theirs = fork.Pipe()
        process = fork.Process(target=_train, args=(watched, rounds, theirs))
        process.start()
        sides.append((process, ours))
    turns = [[_turn(pipe) for _, pipe in sides] for _ in range(TURNS)][WARM_UP:]
    for process, pipe in sides:
        pipe.send("end")
        process.join()
    return median(plain for plain, _ in turns), median(watched - plain for plain, watched in turns)


def _turn(pipe: Connection) -> float:
    pipe.send("go")
    taken: list[float] = pipe.recv()
    return fmean(taken)


def _train(watched: bool, rounds: int, pipe: Connection) -> None:
    """Tells the CPU-seconds of the main thread for each step; the work that fills it up is not counted."""
    import torch
    from torch import nn

    from penstock.watcher.hooks import install
    from penstock.watcher.start import WatchedRun

    model = nn.Sequential(nn.Linear(4, 1), *(nn.Identity() for _ in range(SUBMODULES - 1)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.zeros(1, 4)
    # arrays, not tensors: those come through a socket, which costs more and varies more than what is measured
    loader: Iterable[Any] = torch.utils.data.DataLoader(
        range(TURN * TURNS),  # type: ignore[arg-type]
        num_workers=1,
        prefetch_factor=TURN,
        collate_fn=np.array,
    )
    taken: list[float] = []
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
            taken.append(time.thread_time() - since)
            _work(rounds)
            if len(taken) == TURN:
                pipe.send(taken)
                taken = []
                pipe.recv()
                _stay_on_one_core()
            since = time.thread_time()
        if watching is not None:
            watching.close()


def _stay_on_one_core() -> None:
    """This thread, on the same core as the other side's: cores differ."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _work(rounds: int) -> None:
    """An amount, not a wait for the clock, so that nothing hides in it."""
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
