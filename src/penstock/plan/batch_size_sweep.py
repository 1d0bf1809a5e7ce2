"""Batch sizes tried one after the other on the user's own step: samples per second and memory at each, and the knee.

Always in samples per second: twice the batch at half the steps per second is the same speed, not half of it.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import Any, Protocol

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.errors import SettingError, printable


class DeviceMemory(Protocol):
    """What a sweep asks of a device."""

    def begin(self) -> None:
        """Forget the peak so far."""

    def wait(self) -> None:
        """Until the device has done all that it was asked to."""

    def peak_bytes(self) -> int | None:
        """Since `begin`; None where nobody can tell."""

    def free(self) -> None:
        """Give back what is not used any more."""


def device_memory(device: str | None) -> DeviceMemory:
    """Of "cpu" or "cuda:0"; None is a GPU that this process has used already, else the CPU.

    torch is imported only where a GPU is named.
    """
    if device is None:
        torch = sys.modules.get("torch")
        return GpuMemory(torch, None) if torch is not None and torch.cuda.is_initialized() else ProcessMemory()
    if device == "cpu":
        return ProcessMemory()
    if device.partition(":")[0] != "cuda":
        raise SettingError(f"device {device!r} is not known here", advice='Use "cpu" or "cuda"')
    try:
        found = importlib.import_module("torch")
    except ImportError as error:
        raise SettingError(f"device {device!r} needs torch, which cannot be imported: {error}") from error
    if not found.cuda.is_available():
        raise SettingError(f"device is {device!r}, and torch sees no GPU here", advice="Leave device out")
    return GpuMemory(found, device)


@dataclass(frozen=True)
class GpuMemory:
    """As torch's allocator counts it."""

    torch: Any
    device: str | None

    def begin(self) -> None:
        """Forget the peak so far."""
        self.torch.cuda.reset_peak_memory_stats(self.device)

    def wait(self) -> None:
        """Until all kernels are done."""
        self.torch.cuda.synchronize(self.device)

    def peak_bytes(self) -> int | None:
        """Allocated at the most."""
        return int(self.torch.cuda.max_memory_allocated(self.device))

    def free(self) -> None:
        """What the allocator keeps goes back to the device: the next size wants pieces of other sizes."""
        gc.collect()
        self.torch.cuda.empty_cache()


class ProcessMemory:
    """The process's own, whose peak Linux lets a process reset for itself."""

    def __init__(self, folder: Path = Path("/proc/self")) -> None:
        self._folder = folder
        self._known = False

    def begin(self) -> None:
        """Forget the peak so far, if the system lets us."""
        self._known = False
        with suppress(OSError):
            (self._folder / "clear_refs").write_text("5")
            self._known = True

    def wait(self) -> None:
        """Nothing is ever under way."""

    def peak_bytes(self) -> int | None:
        """Resident at the most."""
        if not self._known:
            return None
        with suppress(OSError, ValueError, IndexError):
            for line in (self._folder / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
        return None

    def free(self) -> None:
        """Cycles may hold arrays."""
        gc.collect()


SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
NEAR = 0.05
"""Of the best samples/s: sizes that lose less are as good, and the smallest of them is the knee."""
WARM_UP = 2
"""Steps that are not timed: the first ones allocate, compile and choose kernels."""
LEAST_STEPS = 3
MOST_STEPS = 1_000_000
"""A step that still has taken no time after so many is none."""
OUT_OF_MEMORY = "out of memory"
_SIGNS = (OUT_OF_MEMORY, "can't allocate memory", "cannot allocate memory")
"""In the message of a RuntimeError: what torch says on a GPU, and on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One batch size."""

    size: int
    samples_s: float | None = None
    """None where it could not be run."""
    it_s: float | None = None
    """Steps per second: not a measure of speed."""
    peak_bytes: int | None = None
    """The device's memory at the most; on a CPU that of the whole process; None where nobody can tell."""
    failed: str = ""
    """Why it could not be run, if it could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All sizes that were tried, smallest first; after one that does not fit into memory no larger one is."""

    rows: tuple[SweepRow, ...]

    @property
    def best(self) -> SweepRow:
        """With the most samples per second."""
        return max((row for row in self.rows if row.samples_s), key=lambda row: row.samples_s or 0.0)

    @property
    def knee(self) -> int:
        """The smallest size within 5% of the best: beyond it more memory buys nothing."""
        enough = (1 - NEAR) * (self.best.samples_s or 0.0)
        return next(row.size for row in self.rows if row.samples_s and row.samples_s >= enough)


def sweep(
    step: Callable[[Any], object],
    make_batch: Callable[[int], Any],
    sizes: Iterable[int] = SIZES,
    *,
    device: str | None = None,
    seconds_each: float = 2.0,
    clock: Clock = SYSTEM_CLOCK,
) -> Sweep:
    """Run `step(make_batch(size))` for some seconds at each size.

    A batch is made once and used again, so no loading is measured. `device` is where the step computes, "cpu" or
    "cuda:0"; None is the current GPU if this process has used one already, else the CPU. A size at which the step
    raises is a row with the reason; that no size runs is an error.
    """
    wanted = _checked(sizes, seconds_each)
    memory = device_memory(device)
    rows: list[SweepRow] = []
    for size in wanted:
        rows.append(_row(size, step, make_batch, memory, seconds_each, clock))
        memory.free()
        if rows[-1].failed == OUT_OF_MEMORY:
            break
    if not any(row.samples_s for row in rows):
        raise SettingError(
            f"the step ran at no batch size; with {rows[0].size}: {rows[0].failed}",
            advice="Call step(make_batch(size)) once by hand",
        )
    return Sweep(rows=tuple(rows))


def _checked(sizes: Iterable[int], seconds_each: float) -> list[int]:
    wanted = list(sizes)
    if not wanted or not all(type(size) is int and size > 0 for size in wanted):
        raise SettingError(f"sizes {wanted} are not whole numbers above 0")
    if not 0 < seconds_each < inf:
        raise SettingError(f"seconds_each={seconds_each} is not above 0")
    return sorted(set(wanted))


def _row(
    size: int,
    step: Callable[[Any], object],
    make_batch: Callable[[int], Any],
    memory: DeviceMemory,
    seconds: float,
    clock: Clock,
) -> SweepRow:
    """The exception is let go before memory is freed: its traceback holds the tensors of the step."""
    try:
        memory.begin()
        batch = make_batch(size)
        for _ in range(WARM_UP):
            step(batch)
        memory.wait()
        steps, took_s = _timed(lambda: step(batch), memory, seconds, clock)
        rate = steps / took_s
        return SweepRow(size=size, samples_s=rate * size, it_s=rate, peak_bytes=memory.peak_bytes())
    except Exception as error:  # whatever the user's step raises is told, and the other sizes are still tried
        return SweepRow(size=size, failed=_why(error))


def _timed(step: Callable[[], object], memory: DeviceMemory, seconds: float, clock: Clock) -> tuple[int, float]:
    """Steps and the time they took. The device is waited for after runs of steps, not after each."""
    steps, run, begin = 0, 1, clock.now()
    while True:
        for _ in range(run):
            step()
        memory.wait()
        steps += run
        took_s = clock.now() - begin
        if took_s >= seconds and steps >= LEAST_STEPS:
            return steps, took_s
        if steps >= MOST_STEPS:
            raise SettingError(f"{steps} steps took {took_s} s: that is no step")
        left = ceil((seconds - took_s) / took_s * steps) if took_s > 0 else 2 * steps
        run = max(1, min(left, 2 * steps))


def _why(error: Exception) -> str:
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)
    ):
        return OUT_OF_MEMORY
    return printable(f"{type(error).__name__}: {error}")[:200]
