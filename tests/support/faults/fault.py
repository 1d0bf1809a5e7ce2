"""What a fault is: a real training that something slows down, its twin without it, and the rule that must see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock.core.clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")
Severity = Literal["mild", "severe"]
STEPS = 200
"""A few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to run a fault."""

    folder: Path
    """Where the data lies; what is missing is made, so runs may share it. On a real disk, not in memory."""
    seed: int = 0
    """Which samples are heavy, which worker lags, in what order all come."""
    severity: Severity = "severe"
    removed: bool = False
    """The same training without the fault."""
    steps: int = STEPS

    def pick(self, *, mild: T, severe: T, removed: T) -> T:
        """What this case asks for."""
        return removed if self.removed else self.level(mild=mild, severe=severe)

    def level(self, *, mild: T, severe: T) -> T:
        """By severity alone: what the training has with the fault and without."""
        return mild if self.severity == "mild" else severe


@dataclass(frozen=True, slots=True)
class Step:
    """A training step as a host sees it: Python that launches kernels, then the wait for the device."""

    cpu_s: float = 0.0015
    device_s: float = 0.006

    def __call__(self, batch: Any) -> None:
        """Python on purpose: launching kernels holds the GIL too."""
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            pass
        time.sleep(self.device_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a training took from its first batch on: how long workers take to come is the same with and without."""

    steps: int
    seconds: float

    @property
    def steps_per_s(self) -> float:
        """Its speed; the twin has the same batch size."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A loader and the loop around it."""

    loader: Iterable[Any]
    step: Callable[[Any], None] = field(default_factory=Step)
    passes: int = 1

    def run(self, watched: Iterable[Any] | None = None, clock: Clock = SYSTEM_CLOCK) -> Outcome:
        """To its end; over `penstock.watch(training.loader)`, say, instead of the bare loader."""
        batches = self.loader if watched is None else watched
        steps, began = 0, clock.now()
        for _ in range(self.passes):
            for batch in batches:
                began = began if steps else clock.now()
                self.step(batch)
                steps += 1
        return Outcome(steps=steps, seconds=clock.now() - began)


@dataclass(frozen=True, slots=True)
class Fault:
    """`with fault.build(case) as training: training.run()`: what it set up is gone afterwards."""

    name: str
    about: str
    expect: str | None
    """The rule that must be named first; None: nothing is wrong, and nothing must be found."""
    build: Callable[[Case], AbstractContextManager[Training]]
    missing: Callable[[Path], str | None]
    """Given the folder of the data, why this fault cannot be had here; None if it can."""


def anywhere(folder: Path) -> str | None:
    """For faults that need nothing special."""
    return None


def fault(
    expect: str | None, missing: Callable[[Path], str | None] = anywhere
) -> Callable[[Callable[[Case], Iterator[Training]]], Fault]:
    """Make a fault of a generator that sets up, yields the training, cleans up; its docstring says what is wrong."""

    def made(build: Callable[[Case], Iterator[Training]]) -> Fault:
        return Fault(build.__name__, (build.__doc__ or "").strip(), expect, contextmanager(build), missing)

    return made
