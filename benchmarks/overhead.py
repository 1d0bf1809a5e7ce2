"""What watching costs the training: microseconds per step on the main thread, and their share of a step of 10 ms."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.result import Line, in_turns, rate
from penstock.observe.hooks import install
from penstock.observe.start import Watching
from penstock.observe.watch import watch

SUBMODULES = 50
STEPS = 50
WARM_UP = 10
"""Steps of each round that do not count: the first of a pass look for modules."""
ROUNDS = 15
STEP_S = 0.010
EXTRA_US = 20.0
SHARE = 0.01


def measure() -> Iterator[Line]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        watching = Watching(Path(folder, "run.jsonl"))
        try:
            plain, watched = in_turns(_script(watching), ROUNDS)
        finally:
            watching.close()
        yield _extra("penstock run, 50 submodules: extra µs per step", plain, watched)
        share = _extra_s(plain, watched) / STEP_S
        yield Line("penstock run: share of a step of 10 ms", f"{share:.2%}", "", share, SHARE, "at most")
        plain, watched = in_turns([_bare, lambda: _watched(Path(folder, "watch.jsonl"))], ROUNDS)
        yield _extra("penstock.watch, bare iterable: extra µs per step", plain, watched)


def _extra(what: str, plain: list[float], watched: list[float]) -> Line:
    ours, other = f"{median(watched) * 1e6:.1f} µs", f"unwatched: {median(plain) * 1e6:.1f} µs"
    return Line(what, ours, other, _extra_s(plain, watched) * 1e6, EXTRA_US, "at most")


def _extra_s(plain: list[float], watched: list[float]) -> float:
    """The median of the rounds' own differences: a slow moment of the machine strikes both sides of one."""
    return median(a - b for a, b in zip(watched, plain, strict=True))


def _script(watching: Watching) -> list[Callable[[], float]]:
    """A training without and with all that `penstock run` puts into a process; a round is a pass."""
    data = TensorDataset(torch.zeros(STEPS, 4))
    loader = DataLoader(data, batch_size=1, num_workers=1, prefetch_factor=8, persistent_workers=True)
    model = nn.Sequential(nn.Linear(4, 1), *(nn.Identity() for _ in range(SUBMODULES - 1)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def plain() -> float:
        return _pass(loader, model, optimizer)

    def watched() -> float:
        undo = install(watching)
        try:
            return plain()
        finally:
            undo()

    return [plain, watched]


def _pass(loader: Iterable[list[torch.Tensor]], model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """CPU-seconds of the main thread per step, the median; the work that fills up its 10 ms is not counted."""
    taken: list[float] = []
    since = time.thread_time()
    for (x,) in loader:
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken.append(time.thread_time() - since)
        _work(_busy_rounds())
        since = time.thread_time()
    return median(taken[WARM_UP:])


def _work(rounds: int) -> None:
    for _ in range(rounds):
        sum(range(1000))


@cache
def _busy_rounds() -> int:
    """How much work takes 10 ms here: an amount, not a wait for the clock, so that nothing hides in it."""
    return int(rate(lambda: _work(1), 0.5) * STEP_S)


def _bare() -> float:
    return _per_batch(range(20 * STEPS))


def _watched(record: Path) -> float:
    with watch(range(20 * STEPS), record=record, live=False) as batches:
        return _per_batch(batches)


def _per_batch(batches: Iterable[int]) -> float:
    times = [time.thread_time() for _ in batches]
    return median(after - before for before, after in pairwise(times))
