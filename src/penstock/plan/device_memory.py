"""The memory of the device that a step computes on: its peak, and waiting until the device is done."""

from __future__ import annotations

import gc
import importlib
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import SettingError


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
