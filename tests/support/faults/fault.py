"""A fault: a real training that is slowed down by one cause, the same training without it, and the rule to be named."""

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
"""Default number of steps of a training; they take a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The settings with which a fault is run."""

    folder: Path
    """Folder of the data, on a real disk and not in memory. Missing files are made, so several runs may share it."""
    seed: int = 0
    """Seed for the choices of a fault: which samples are heavy, which worker is slow, in what order reads come."""
    severity: Severity = "severe"
    removed: bool = False
    """Run the same training without the fault."""
    steps: int = STEPS

    def pick(self, *, mild: T, severe: T, removed: T) -> T:
        """Return the value for this case, where the training without the fault has a value of its own."""
        return removed if self.removed else self.level(mild=mild, severe=severe)

    def level(self, *, mild: T, severe: T) -> T:
        """Return the value for this severity, where the training has the same value with and without the fault."""
        return mild if self.severity == "mild" else severe


@dataclass(frozen=True, slots=True)
class Step:
    """A training step as the host sees it: Python code that launches kernels, then a wait for the device."""

    cpu_s: float = 0.0015
    device_s: float = 0.006

    def __call__(self, batch: Any) -> None:
        """Compute in Python, which holds the GIL as launching kernels does, then sleep."""
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            pass
        time.sleep(self.device_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The steps of a training and their duration from the first batch on.

    The start of the workers is left out, because it takes the same time with and without the fault.
    """

    steps: int
    seconds: float

    @property
    def steps_per_s(self) -> float:
        """Steps per second; with and without the fault the batch size is the same."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A loader and the loop around it."""

    loader: Iterable[Any]
    step: Callable[[Any], None] = field(default_factory=Step)
    epochs: int = 1

    def run(self, watched: Iterable[Any] | None = None, clock: Clock = SYSTEM_CLOCK) -> Outcome:
        """Run all epochs, over `watched` (for example `penstock.watch(training.loader)`) instead of the loader."""
        batches = self.loader if watched is None else watched
        steps, began = 0, clock.now()
        for _ in range(self.epochs):
            for batch in batches:
                began = began if steps else clock.now()
                self.step(batch)
                steps += 1
        return Outcome(steps=steps, seconds=clock.now() - began)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by its name. `with fault.build(case) as training: training.run()` cleans up when the block ends."""

    name: str
    about: str
    """One sentence that says what is wrong."""
    expect: str | None
    """The rule that the diagnosis must name first; None: nothing is wrong, and there must be no finding."""
    build: Callable[[Case], AbstractContextManager[Training]]
    missing: Callable[[Path], str | None]
    """Return why the fault cannot be injected on this machine with data in this folder, or None if it can."""


def nothing_missing(folder: Path) -> str | None:
    """Return None: the fault can be injected on every machine."""
    return None


def fault(
    expect: str | None, missing: Callable[[Path], str | None] = nothing_missing
) -> Callable[[Callable[[Case], Iterator[Training]]], Fault]:
    """Make a Fault of a generator function that sets up, yields the training and cleans up.

    The fault has the name of the function, and its docstring says what is wrong.
    """

    def decorate(build: Callable[[Case], Iterator[Training]]) -> Fault:
        return Fault(build.__name__, (build.__doc__ or "").strip(), expect, contextmanager(build), missing)

    return decorate
