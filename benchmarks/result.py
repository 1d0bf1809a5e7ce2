"""What a benchmark hands over: one line with a ratio and the figure it should reach."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, TypeVar

Figure = TypeVar("Figure")


@dataclass(frozen=True)
class Line:
    what: str
    ours: str
    other: str
    """What it is measured against, and that one's figure."""
    ratio: float
    target: float
    sense: Literal["at least", "at most"]

    @property
    def reached(self) -> bool:
        return self.ratio >= self.target if self.sense == "at least" else self.ratio <= self.target


@dataclass(frozen=True)
class Table:
    """Figures beside each other that are to be read, not reached."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str


def in_turns(contestants: Sequence[Callable[[], Figure]], rounds: int) -> list[list[Figure]]:
    """Each contestant's figures, one per round; the order rotates so that none always goes first."""
    figures: list[list[Figure]] = [[] for _ in contestants]
    for number in range(rounds):
        for place in range(len(contestants)):
            who = (place + number) % len(contestants)
            figures[who].append(contestants[who]())
    return figures


def median_ratio(ours: Sequence[float], other: Sequence[float]) -> float:
    """The median of the rounds' own ratios: a slow moment of the machine strikes both sides of one."""
    return median(a / b for a, b in zip(ours, other, strict=True))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rate(work: Callable[[], object], at_least_s: float) -> float:
    """Calls per second, over as many whole calls as fill the time."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < at_least_s:
        work()
        calls += 1
    return calls / elapsed


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return f"{_card()}{os.cpu_count()} cores ({cpu}), Python {sys.version.split()[0]}, {platform.system()}"


def _card() -> str:
    """Where what is measured has brought torch and there is a GPU; looking must not bring it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
