"""The sums that the system keeps since its start, all read at one moment. What it does not tell is left out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from penstock.core.cgroups import cgroup_folders, free_bytes
from penstock.recording.format import GpuLoad
from penstock.watcher.machine.facts import gpu_handles
from penstock.watcher.machine.processes import (
    PAGE_BYTES,
    Key,
    ProcessReading,
    SharedMemoryEstimate,
    Workers,
    process_readings,
)
from penstock.watcher.machine.procfs import read_quickly

_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReading:
    """Sums of one block device."""

    reads: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0
    """Over all requests: two in flight for a second are two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """Sums of one cgroup with a quota."""

    throttled_s: float
    """Over all cores: two held back for a second are two seconds."""
    throttled_periods: int
    periods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterReading:
    """All sums at one moment."""

    at_s: float
    cpu_s: float = 0.0
    iowait_s: float = 0.0
    steal_s: float = 0.0
    load: float = 0.0
    processes: Mapping[Key, ProcessReading] = field(default_factory=dict)
    disks: Mapping[str, DiskReading] = field(default_factory=dict)
    memory_free_bytes: int = 0
    swap_used_bytes: int = 0
    swapped_in_bytes: int = 0
    major_faults: int = 0
    throttling: Mapping[str, Throttling] = field(default_factory=dict)
    """Of our cgroup and those above it."""
    pressure_s: Mapping[str, float] = field(default_factory=dict)
    network_bytes: int = 0
    gpus: tuple[GpuLoad, ...] = ()


class KernelCounters:
    """Reads them; keeps only what need not be looked up every time."""

    def __init__(self) -> None:
        self._sharing = SharedMemoryEstimate()
        self._throttle_files = [folder / "cpu.stat" for folder in cgroup_folders("cpu")]

    def read(self, at_s: float, workers: Workers) -> CounterReading:
        """As they stand now, which is `at_s` on the session's clock."""
        times = psutil.cpu_times()
        swapped_in_bytes, major_faults = _paging()
        return CounterReading(
            at_s=at_s,
            cpu_s=sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq")),
            iowait_s=getattr(times, "iowait", 0.0),
            steal_s=getattr(times, "steal", 0.0),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
            processes=self._sharing.without_shared(process_readings(workers), at_s),
            disks=_disk_readings(),
            memory_free_bytes=free_bytes(),
            swap_used_bytes=_swap_used_bytes(),
            swapped_in_bytes=swapped_in_bytes,
            major_faults=major_faults,
            throttling=_throttling(self._throttle_files),
            pressure_s=_pressure(),
            network_bytes=_network_bytes(),
            gpus=tuple(_gpu_loads()),
        )


def _disk_readings() -> dict[str, DiskReading]:
    """Whole devices: the kernel counts a partition's traffic in its disk too."""
    found: dict[str, DiskReading] = {}
    with suppress(OSError, ValueError, IndexError):
        whole = {name.replace("!", "/") for name in os.listdir("/sys/block")}
        for line in read_quickly("/proc/diskstats").decode(errors="replace").splitlines():
            fields = line.split()
            numbers = [int(number) for number in fields[3:14]]
            if fields[2] in whole and any(numbers):
                found[fields[2]] = DiskReading(
                    reads=numbers[0],
                    read_bytes=numbers[2] * _SECTOR_BYTES,
                    write_bytes=numbers[6] * _SECTOR_BYTES,
                    busy_s=numbers[9] / 1000,
                    waited_s=numbers[10] / 1000,
                )
    return found


def _throttling(files: Iterable[Path]) -> dict[str, Throttling]:
    found: dict[str, Throttling] = {}
    for file in files:
        with suppress(OSError, ValueError, KeyError):
            stat = _table(file)
            throttled_s = stat["throttled_usec"] / 1e6 if "throttled_usec" in stat else stat["throttled_time"] / 1e9
            found[str(file)] = Throttling(
                throttled_s=throttled_s, throttled_periods=stat["nr_throttled"], periods=stat["nr_periods"]
            )
    return found


def _pressure() -> dict[str, float]:
    """Seconds in which some task waited, since the machine's start."""
    found: dict[str, float] = {}
    for name in ("cpu", "io", "memory"):
        with suppress(OSError, ValueError, IndexError):
            found[name] = int(read_quickly(f"/proc/pressure/{name}").partition(b"total=")[2].split()[0]) / 1e6
    return found


def _paging() -> tuple[int, int]:
    """Bytes swapped in, and page faults that had to wait for a disk."""
    with suppress(OSError, ValueError, IndexError):
        stat = b"\n" + read_quickly("/proc/vmstat")
        pages, faults = (
            int(stat.partition(b"\n%b " % name)[2].split(None, 1)[0]) for name in (b"pswpin", b"pgmajfault")
        )
        return pages * PAGE_BYTES, faults
    return 0, 0


def _swap_used_bytes() -> int:
    with suppress(OSError, RuntimeError, RuntimeWarning):
        return int(psutil.swap_memory().used)
    return 0


def _network_bytes() -> int:
    """In and out, over all interfaces but the loopback."""
    with suppress(OSError):
        cards = psutil.net_io_counters(pernic=True, nowrap=False)
        return sum(card.bytes_recv + card.bytes_sent for name, card in cards.items() if not name.startswith("lo"))
    return 0


def _gpu_loads() -> Iterable[GpuLoad]:
    for nvml, handle in gpu_handles():
        try:
            busy_percent = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            used_bytes = nvml.nvmlDeviceGetMemoryInfo(handle).used
        except Exception:  # the driver may refuse; the others keep their places
            yield GpuLoad()
        else:
            yield GpuLoad(utilisation=busy_percent / 100, memory_used_bytes=int(used_bytes))


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    return {
        name: int(number) for name, number in (line.split() for line in read_quickly(str(path)).decode().splitlines())
    }
