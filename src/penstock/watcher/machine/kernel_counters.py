"""Readings of the counters that the kernel and drivers keep: CPU, disks, memory, cgroups, pressure, network, GPUs.

Most are sums since the start of the machine. A counter that the system does not have is left out.
"""

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
    ProcessKey,
    ProcessReading,
    SharedMemoryEstimate,
    WorkersByPid,
    process_readings,
)
from penstock.watcher.machine.procfs import read_holding_gil

_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReading:
    """Counters of one block device."""

    reads: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    busy_s: float = 0.0
    """Seconds with at least one request in flight."""
    waited_s: float = 0.0
    """Seconds in flight, summed over all requests: two requests in flight for one second count as two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlingReading:
    """Counters of one cgroup that has a CPU quota."""

    throttled_s: float
    """Seconds of throttling, summed over cores: two cores throttled for one second count as two seconds."""
    throttled_periods: int
    """Periods of the quota in which the cgroup was throttled."""
    periods: int
    """Periods of the quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterReading:
    """All counters at one moment."""

    at_s: float
    """The moment, in seconds since the run started."""
    cpu_s: float = 0.0
    """CPU seconds of all processes of the machine."""
    iowait_s: float = 0.0
    steal_s: float = 0.0
    load: float = 0.0
    """Load average of the last minute."""
    processes: Mapping[ProcessKey, ProcessReading] = field(default_factory=dict)
    """The processes of this run."""
    disks: Mapping[str, DiskReading] = field(default_factory=dict)
    memory_free_bytes: int = 0
    swap_used_bytes: int = 0
    swapped_in_bytes: int = 0
    major_faults: int = 0
    throttling: Mapping[str, ThrottlingReading] = field(default_factory=dict)
    """The cgroup of this process and those above it, by the path of their cpu.stat."""
    pressure_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds in which some task waited for cpu, io or memory."""
    network_bytes: int = 0
    """Bytes received and sent."""
    gpus: tuple[GpuLoad, ...] = ()


class KernelCounters:
    """Reads all counters. It keeps the paths of cgroups and the estimate of shared memory between two readings."""

    def __init__(self) -> None:
        self._shared_memory = SharedMemoryEstimate()
        self._throttle_files = [folder / "cpu.stat" for folder in cgroup_folders("cpu")]

    def read(self, at_s: float, workers: WorkersByPid) -> CounterReading:
        """Return the counters as they are now; `at_s` is the present time on the session's clock."""
        times = psutil.cpu_times()
        swapped_in_bytes, major_faults = _paging()
        return CounterReading(
            at_s=at_s,
            cpu_s=sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq")),
            iowait_s=getattr(times, "iowait", 0.0),
            steal_s=getattr(times, "steal", 0.0),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
            processes=self._shared_memory.without_shared(process_readings(workers), at_s),
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
    """Return the counters of whole disks. Partitions are left out, because their traffic is counted in the disk too."""
    found: dict[str, DiskReading] = {}
    with suppress(OSError, ValueError, IndexError):
        whole_disks = {name.replace("!", "/") for name in os.listdir("/sys/block")}
        for line in read_holding_gil("/proc/diskstats").decode(errors="replace").splitlines():
            fields = line.split()
            numbers = [int(number) for number in fields[3:14]]
            if fields[2] in whole_disks and any(numbers):
                found[fields[2]] = DiskReading(
                    reads=numbers[0],
                    read_bytes=numbers[2] * _SECTOR_BYTES,
                    write_bytes=numbers[6] * _SECTOR_BYTES,
                    busy_s=numbers[9] / 1000,
                    waited_s=numbers[10] / 1000,
                )
    return found


def _throttling(files: Iterable[Path]) -> dict[str, ThrottlingReading]:
    """Return the counters of each cgroup with a quota; cgroup v2 counts in microseconds and v1 in nanoseconds."""
    found: dict[str, ThrottlingReading] = {}
    for file in files:
        with suppress(OSError, ValueError, KeyError):
            stat = _read_table(file)
            throttled_s = stat["throttled_usec"] / 1e6 if "throttled_usec" in stat else stat["throttled_time"] / 1e9
            found[str(file)] = ThrottlingReading(
                throttled_s=throttled_s, throttled_periods=stat["nr_throttled"], periods=stat["nr_periods"]
            )
    return found


def _pressure() -> dict[str, float]:
    """Return the seconds in which some task waited, for each resource with pressure stall information."""
    found: dict[str, float] = {}
    for name in ("cpu", "io", "memory"):
        with suppress(OSError, ValueError, IndexError):
            found[name] = int(read_holding_gil(f"/proc/pressure/{name}").partition(b"total=")[2].split()[0]) / 1e6
    return found


def _paging() -> tuple[int, int]:
    """Return the bytes swapped in and the number of page faults that waited for a disk."""
    with suppress(OSError, ValueError, IndexError):
        stat = b"\n" + read_holding_gil("/proc/vmstat")
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
    """Return the bytes received and sent by all network interfaces except the loopback."""
    with suppress(OSError):
        interfaces = psutil.net_io_counters(pernic=True, nowrap=False)
        return sum(each.bytes_recv + each.bytes_sent for name, each in interfaces.items() if not name.startswith("lo"))
    return 0


def _gpu_loads() -> Iterable[GpuLoad]:
    for nvml, handle in gpu_handles():
        try:
            busy_percent = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            used_bytes = nvml.nvmlDeviceGetMemoryInfo(handle).used
        except Exception:  # the driver may refuse; an empty entry keeps the indices of the other GPUs
            yield GpuLoad()
        else:
            yield GpuLoad(utilisation=busy_percent / 100, memory_used_bytes=int(used_bytes))


def _read_table(path: Path) -> dict[str, int]:
    """Return the content of a file whose lines are a name and a number."""
    return {
        name: int(number)
        for name, number in (line.split() for line in read_holding_gil(str(path)).decode().splitlines())
    }
