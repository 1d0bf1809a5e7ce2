"""What watching costs the training: microseconds per step on the main thread, and their share of a step of 10 ms.

A training with and without all that `penstock run` puts into a process: each side in fresh processes, in turns, because
that is how it is met. Putting it in and taking it out of one process would measure how the interpreter takes changes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.result import Line, in_turns, rate

SUBMODULES = 50
STEPS = 150
WARM_UP = 50
"""Steps of a process that do not count: the first of a pass look for modules, and the interpreter learns."""
ROUNDS = 25
"""Processes differ by more than what is measured: cores change their speed, and memory lies elsewhere."""
STEP_S = 0.010
EXTRA_US = 20.0
SHARE = 0.01


def measure() -> Iterator[Line]:
    plain, watched = in_turns([lambda: _in_child("plain"), lambda: _in_child("watched")], ROUNDS)
    yield _extra("penstock run, 50 submodules: extra µs per step", plain, watched)
    share = _extra_s(plain, watched) / STEP_S
    yield Line("penstock run: share of a step of 10 ms", f"{share:.2%}", "", share, SHARE, "at most")
    with tempfile.TemporaryDirectory() as folder:
        plain, watched = in_turns([_bare, lambda: _watched(Path(folder, "watch.jsonl"))], ROUNDS)
    yield _extra("penstock.watch, bare iterable: extra µs per step", plain, watched)


def _extra(what: str, plain: list[float], watched: list[float]) -> Line:
    extra_us = _extra_s(plain, watched) * 1e6
    return Line(what, f"{extra_us:.1f} µs", f"unwatched: {median(plain) * 1e6:.1f} µs", extra_us, EXTRA_US, "at most")


def _extra_s(plain: list[float], watched: list[float]) -> float:
    """The median of the rounds' own differences: a slow moment of the machine strikes both sides of one."""
    return median(a - b for a, b in zip(watched, plain, strict=True))


def _in_child(side: str) -> float:
    command = [sys.executable, "-m", "benchmarks.overhead", side]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def _train(watched: bool) -> float:
    """CPU-seconds of the main thread per step, the median; the work that fills up its 10 ms is not counted."""
    import torch
    from torch import nn

    from penstock.observe.hooks import install
    from penstock.observe.start import Watching

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 1), *(nn.Identity() for _ in range(SUBMODULES - 1)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.zeros(1, 4)
    # numbers, not tensors: those come through a socket, which costs more and varies more than what is measured
    loader: Iterable[list[int]] = torch.utils.data.DataLoader(
        range(STEPS),  # type: ignore[arg-type]
        num_workers=1,
        prefetch_factor=8,
        collate_fn=_as_it_is,
    )
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        watching = Watching(Path(folder, "run.jsonl")) if watched else None
        if watching is not None:
            install(watching)
        since = time.thread_time()
        for _ in loader:
            loss = model(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken.append(time.thread_time() - since)
            _work(_busy_rounds())
            since = time.thread_time()
        if watching is not None:
            watching.close()
    return median(taken[WARM_UP:])


def _as_it_is(batch: list[int]) -> list[int]:
    return batch


def _work(rounds: int) -> None:
    for _ in range(rounds):
        sum(range(1000))


@cache
def _busy_rounds() -> int:
    """How much work takes 10 ms here: an amount, not a wait for the clock, so that nothing hides in it."""
    return int(rate(lambda: _work(1), 0.5) * STEP_S)


def _bare() -> float:
    return _per_batch(range(1000))


def _watched(record: Path) -> float:
    from penstock.observe.watch import watch

    with watch(range(1000), record=record, live=False) as batches:
        return _per_batch(batches)


def _per_batch(batches: Iterable[int]) -> float:
    times = [time.thread_time() for _ in batches]
    return median(after - before for before, after in pairwise(times))


if __name__ == "__main__":
    print(_train(watched=sys.argv[1] == "watched"))
