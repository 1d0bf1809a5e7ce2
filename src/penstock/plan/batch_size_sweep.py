"""A sweep over batch sizes on the user's own step: samples per second and memory at each size, and the knee.

Speed is always in samples per second: twice the batch at half the steps per second is the same speed, not half of it.
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

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
KNEE_TOLERANCE = 0.05
"""Share of the best samples/s that a size may lose and still be as good; the smallest such size is the knee."""
WARM_UP_STEPS = 2
"""Steps that are not timed: the first ones allocate memory, compile and select kernels."""
MIN_STEPS = 3
MAX_STEPS = 1_000_000
"""Steps after which a step that has taken no measurable time is refused."""
OUT_OF_MEMORY = "out of memory"
_OUT_OF_MEMORY_MESSAGES = (OUT_OF_MEMORY, "can't allocate memory", "cannot allocate memory")
"""Parts of the messages of torch's RuntimeError on a GPU and on a CPU."""


# -- the memory of the device --------------------------------------------------------------------------------------


class DeviceMemory(Protocol):
    """The interface to the device on which the step computes: its peak memory, and waiting for its work."""

    def begin(self) -> None:
        """Reset the peak."""

    def wait(self) -> None:
        """Wait until the device has done all work that was submitted."""

    def peak_bytes(self) -> int | None:
        """Return the peak since `begin`; None where it cannot be measured."""

    def free(self) -> None:
        """Release memory that is no longer used."""


def device_memory(device: str | None) -> DeviceMemory:
    """Return the memory of "cpu" or "cuda:0"; None stands for a GPU that this process has used already, else the CPU.

    torch is imported only where a GPU is named.
    """
    if device is None:
        torch = sys.modules.get("torch")
        return GpuMemory(torch, None) if torch is not None and torch.cuda.is_initialized() else ProcessMemory()
    if device == "cpu":
        return ProcessMemory()
    if device.partition(":")[0] != "cuda":
        raise SettingError(f"device {device!r} is not known", advice='Use "cpu" or "cuda"')
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise SettingError(f"device {device!r} needs torch, which cannot be imported: {error}") from error
    if not torch.cuda.is_available():
        raise SettingError(f"device is {device!r}, and torch sees no GPU here", advice="Leave device out")
    return GpuMemory(torch, device)


@dataclass(frozen=True)
class GpuMemory:
    """GPU memory as torch's allocator counts it."""

    torch: Any
    device: str | None

    def begin(self) -> None:
        """Reset the peak."""
        self.torch.cuda.reset_peak_memory_stats(self.device)

    def wait(self) -> None:
        """Wait until all kernels are done."""
        self.torch.cuda.synchronize(self.device)

    def peak_bytes(self) -> int | None:
        """Return the largest number of bytes that were allocated."""
        return int(self.torch.cuda.max_memory_allocated(self.device))

    def free(self) -> None:
        """Return cached memory to the device: the next batch size needs allocations of other sizes."""
        gc.collect()
        self.torch.cuda.empty_cache()


class ProcessMemory:
    """Resident memory of this process, whose peak Linux lets a process reset."""

    def __init__(self, folder: Path = Path("/proc/self")) -> None:
        self._folder = folder
        self._reset = False

    def begin(self) -> None:
        """Reset the peak, if the system allows it."""
        self._reset = False
        with suppress(OSError):
            (self._folder / "clear_refs").write_text("5")
            self._reset = True

    def wait(self) -> None:
        """Return at once: work on the CPU is done when the step returns."""

    def peak_bytes(self) -> int | None:
        """Return the largest resident size; None where the peak could not be reset or read."""
        if not self._reset:
            return None
        with suppress(OSError, ValueError, IndexError):
            for line in (self._folder / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
        return None

    def free(self) -> None:
        """Collect garbage: reference cycles may hold arrays."""
        gc.collect()


# -- the sweep -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The measurement of one batch size."""

    size: int
    samples_s: float | None = None
    """None if the step could not run."""
    it_s: float | None = None
    """Steps per second; not a measure of speed."""
    peak_bytes: int | None = None
    """Peak memory of the device; on a CPU that of the whole process; None where it cannot be measured."""
    failed: str = ""
    """The reason why the step could not run; empty if it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All sizes that were tried, the smallest first; it ends at the first size that does not fit into memory."""

    rows: tuple[SweepRow, ...]

    @property
    def best(self) -> SweepRow:
        """The row with the most samples per second."""
        return max((row for row in self.rows if row.samples_s), key=lambda row: row.samples_s or 0.0)

    @property
    def knee(self) -> int:
        """The smallest size within 5% of the best: beyond it more memory gains next to nothing."""
        enough = (1 - KNEE_TOLERANCE) * (self.best.samples_s or 0.0)
        return next(row.size for row in self.rows if row.samples_s and row.samples_s >= enough)


def sweep(
    step: Callable[[Any], object],
    make_batch: Callable[[int], Any],
    sizes: Iterable[int] = SIZES,
    *,
    device: str | None = None,
    seconds_each: float = 2.0,
    on_size: Callable[[int], None] = lambda _: None,
    clock: Clock = SYSTEM_CLOCK,
) -> Sweep:
    """Run `step(make_batch(size))` for some seconds at each size.

    A batch is made once and reused, so no loading is measured. `device` is where the step computes, "cpu" or "cuda:0";
    None is the current GPU if this process has used one already, else the CPU. A size at which the step raises becomes
    a row with the reason; it is an error if no size runs. `on_size` is called before each size.
    """
    checked = _checked_sizes(sizes, seconds_each)
    memory = device_memory(device)
    rows: list[SweepRow] = []
    for size in checked:
        on_size(size)
        rows.append(_measure(size, step, make_batch, memory, seconds_each, clock))
        memory.free()
        if rows[-1].failed == OUT_OF_MEMORY:
            break
    if not any(row.samples_s for row in rows):
        raise SettingError(
            f"the step ran at no batch size; with {rows[0].size}: {rows[0].failed}",
            advice="Call step(make_batch(size)) once by hand",
        )
    return Sweep(rows=tuple(rows))


def _checked_sizes(sizes: Iterable[int], seconds_each: float) -> list[int]:
    requested = list(sizes)
    if not requested or not all(type(size) is int and size > 0 for size in requested):
        raise SettingError(f"sizes {requested} are not whole numbers above 0")
    if not 0 < seconds_each < inf:
        raise SettingError(f"seconds_each={seconds_each} is not above 0")
    return sorted(set(requested))


def _measure(
    size: int,
    step: Callable[[Any], object],
    make_batch: Callable[[int], Any],
    memory: DeviceMemory,
    seconds: float,
    clock: Clock,
) -> SweepRow:
    """Measure one size. The exception is dropped before memory is freed: its traceback holds the step's tensors."""
    try:
        memory.begin()
        batch = make_batch(size)
        for _ in range(WARM_UP_STEPS):
            step(batch)
        memory.wait()
        steps, elapsed_s = _time_steps(lambda: step(batch), memory, seconds, clock)
        rate = steps / elapsed_s
        return SweepRow(size=size, samples_s=rate * size, it_s=rate, peak_bytes=memory.peak_bytes())
    except (
        Exception
    ) as error:  # an error of the user's step is reported in its row, and the other sizes are still tried
        return SweepRow(size=size, failed=_failure_text(error))


def _time_steps(step: Callable[[], object], memory: DeviceMemory, seconds: float, clock: Clock) -> tuple[int, float]:
    """Return the number of steps and their seconds; the device is waited for after series of steps, not after each."""
    steps, series, begin = 0, 1, clock.now()
    while True:
        for _ in range(series):
            step()
        memory.wait()
        steps += series
        elapsed_s = clock.now() - begin
        if elapsed_s >= seconds and steps >= MIN_STEPS:
            return steps, elapsed_s
        if steps >= MAX_STEPS:
            raise SettingError(f"{steps} steps took {elapsed_s} s: that is no step")
        left = ceil((seconds - elapsed_s) / elapsed_s * steps) if elapsed_s > 0 else 2 * steps
        series = max(1, min(left, 2 * steps))


def _failure_text(error: Exception) -> str:
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY_MESSAGES)
    ):
        return OUT_OF_MEMORY
    return printable(f"{type(error).__name__}: {error}")[:200]
