"""The results that every benchmark returns (lines with a ratio and its target, tables), and helpers for measuring."""

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
    """One measured ratio and the value that it should reach."""

    what: str
    ours: str
    """Penstock's figure with its unit."""
    other: str
    """The name and the figure of the other side of the comparison."""
    ratio: float
    """Usually Penstock's figure over the other one; a bare figure where nothing is compared."""
    target: float
    """The smallest or largest ratio that is accepted; `sense` says which."""
    sense: Literal["at least", "at most"]

    @property
    def reached(self) -> bool:
        return self.ratio >= self.target if self.sense == "at least" else self.ratio <= self.target


@dataclass(frozen=True)
class Table:
    """Figures without a target, printed below the lines."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str
    """How the figures were measured; printed once if several tables share it."""


def in_turns(variants: Sequence[Callable[[], Figure]], rounds: int) -> list[list[Figure]]:
    """Run every variant once per round and return the figures of each; the order rotates from round to round."""
    figures: list[list[Figure]] = [[] for _ in variants]
    for round_number in range(rounds):
        for place in range(len(variants)):
            variant = (place + round_number) % len(variants)
            figures[variant].append(variants[variant]())
    return figures


def median_ratio(ours: Sequence[float], other: Sequence[float]) -> float:
    """Return the median of the ratios of each round: if the machine is slow for a while, both sides of a round are."""
    return median(a / b for a, b in zip(ours, other, strict=True))


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rate(work: Callable[[], object], at_least_s: float) -> float:
    """Return calls per second, measured over whole calls that take at least so many seconds together."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < at_least_s:
        work()
        calls += 1
    return calls / elapsed


def machine() -> str:
    """Describe the GPU, the CPU, Python and the system in one line."""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return f"{_gpu()}{os.cpu_count()} cores ({cpu}), Python {sys.version.split()[0]}, {platform.system()}"


def _gpu() -> str:
    """Name the GPU and torch's version, but only if the benchmark has imported torch: this must not import it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
