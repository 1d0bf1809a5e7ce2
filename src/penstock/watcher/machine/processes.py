"""Readings of the processes of a run: CPU time, time in the run queue, and memory without what they share.

Without /proc, psutil is used, which reports less. A process that has ended, or that this user must not read, is left
out.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from penstock.watcher.machine.procfs import read_holding_gil, read_releasing_gil

SHARED_BUDGET_S = 0.001
"""Mean CPU seconds that a system sample may spend on measuring shared memory."""
SHARED_INTERVAL_S = 10.0
"""Seconds before the shared memory of a group of processes is measured again."""
_HAS_PROC = os.path.exists("/proc/self/stat")
_HAS_CHILDREN_LISTS = os.path.exists("/proc/thread-self/children")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

ProcessKey = tuple[int, float]
"""A process id and when the process started; ids are used again."""
WorkersByPid = Mapping[int, tuple[int, int]]
"""Process id → (loader, worker)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """Counters of one process since its start."""

    worker: int | None = None
    """None: the main process; -2: a process that is not a worker of a watched loader."""
    loader: int = -1
    cpu_s: float = 0.0
    """CPU seconds of all its threads."""
    children_cpu_s: float = 0.0
    """CPU seconds of children that have ended, which includes those that ended between two readings."""
    thread_cpu_s: float | None = None
    """CPU seconds of its main thread, which makes the batches in a worker and trains in the main process."""
    queue_s: float = 0.0
    """Seconds in which the main thread was runnable but waited for a core."""
    cores: int | None = None
    """Cores that it may run on; None if the system does not report them."""
    memory_bytes: int = 0
    """RSS, or PSS after `SharedMemoryEstimate.without_shared`."""


def process_readings(workers: WorkersByPid) -> dict[ProcessKey, ProcessReading]:
    """Return the readings of the main process, of its descendants and of the workers, in this order."""
    found: dict[ProcessKey, ProcessReading] = {}
    main = os.getpid()
    for pid in dict.fromkeys([main, *_descendants(main), *workers]):
        loader, worker = workers.get(pid, (-1, -2))
        with suppress(OSError, ValueError, IndexError, psutil.Error):  # it has ended, or reading it is not permitted
            key, reading = _read_proc(pid) if _HAS_PROC else _read_psutil(pid)
            role = {} if pid == main else {"loader": loader, "worker": worker}
            found[key] = replace(reading, **role)
    return found


def _read_proc(pid: int) -> tuple[ProcessKey, ProcessReading]:
    numbers = read_holding_gil(f"/proc/{pid}/stat").rpartition(b")")[2].split()  # starts at the third field, "state"
    user, system, children_user, children_system = map(int, numbers[11:15])
    thread_cpu_s, queue_s = None, 0.0
    with suppress(OSError, ValueError, IndexError):
        ran, waited = map(int, read_holding_gil(f"/proc/{pid}/schedstat").split()[:2])
        thread_cpu_s, queue_s = ran / 1e9, waited / 1e9
    return (pid, int(numbers[19])), ProcessReading(
        cpu_s=(user + system) / _TICKS_PER_S,
        children_cpu_s=(children_user + children_system) / _TICKS_PER_S,
        thread_cpu_s=thread_cpu_s,
        queue_s=queue_s,
        cores=len(os.sched_getaffinity(pid)) if hasattr(os, "sched_getaffinity") else None,
        memory_bytes=int(read_holding_gil(f"/proc/{pid}/statm").split()[1])
        * PAGE_BYTES,  # the number in stat may be outdated
    )


def _read_psutil(pid: int) -> tuple[ProcessKey, ProcessReading]:
    process = psutil.Process(pid)
    times = process.cpu_times()
    return (pid, process.create_time()), ProcessReading(
        cpu_s=times.user + times.system,
        children_cpu_s=times.children_user + times.children_system,
        memory_bytes=process.memory_info().rss,
    )


def _descendants(pid: int) -> list[int]:
    """Return the ids of all descendants. The kernel's lists of children take a tenth of the time of a scan of /proc."""
    if not _HAS_CHILDREN_LISTS:
        with suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return []
    found: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                for child in map(int, read_holding_gil(f"/proc/{pid}/task/{thread}/children").split()):
                    found += [child, *_descendants(child)]
    return found


@dataclass(frozen=True, slots=True)
class _SharedMemorySample:
    """The shared memory of one process, which stands for all processes of its group."""

    at_s: float = float("-inf")
    shared_bytes: int = 0
    turn: int = -1
    """How often the group was measured before; its processes are measured in turn."""


_NOT_MEASURED = _SharedMemorySample()


class SharedMemoryEstimate:
    """An estimate of the resident memory that each process shares with others of the run, as RSS - PSS.

    PSS divides each page between the processes that map it, but the kernel walks all pages of a process to compute it:
    10 ms per GB. Therefore one worker is measured for all workers of its loader, and the last measurement is used until
    the next one.
    """

    def __init__(self) -> None:
        self._samples: dict[object, _SharedMemorySample] = {}
        self._budget_s = 0.0

    def without_shared(
        self, processes: dict[ProcessKey, ProcessReading], at_s: float
    ) -> dict[ProcessKey, ProcessReading]:
        """Return the readings with PSS in the place of RSS, as far as it is known."""
        groups: dict[object, list[int]] = defaultdict(list)
        for key, process in processes.items():
            groups[_group(key, process)].append(key[0])
        self._samples = {group: sample for group, sample in self._samples.items() if group in groups}
        self._measure(groups, at_s)
        found: dict[ProcessKey, ProcessReading] = {}
        for key, process in processes.items():
            shared_bytes = self._samples.get(_group(key, process), _NOT_MEASURED).shared_bytes
            found[key] = replace(process, memory_bytes=max(0, process.memory_bytes - shared_bytes))
        return found

    def _measure(self, groups: Mapping[object, list[int]], at_s: float) -> None:
        """Measure the groups with the oldest samples, larger groups first, until the budget is used up.

        A measurement that takes more than the budget is paid off by the following calls.
        """
        self._budget_s = min(SHARED_BUDGET_S, self._budget_s + SHARED_BUDGET_S)
        last = {group: self._samples.get(group, _NOT_MEASURED) for group in groups}
        for group in sorted(groups, key=lambda group: (last[group].at_s, -len(groups[group]))):
            if self._budget_s <= 0 or at_s - last[group].at_s < SHARED_INTERVAL_S:
                return
            start_s = time.thread_time()
            turn = last[group].turn + 1
            pid = groups[group][turn % len(groups[group])]
            self._samples[group] = _SharedMemorySample(at_s, _shared_bytes(pid), turn)
            self._budget_s -= time.thread_time() - start_s


def _group(key: ProcessKey, process: ProcessReading) -> object:
    """Return the group of a process: the workers of one loader, or the process alone."""
    return process.loader if process.loader >= 0 else key


def _shared_bytes(pid: int) -> int:
    """Return RSS - PSS; 0 if the system does not report it."""
    with suppress(OSError, ValueError, KeyError):
        lines = read_releasing_gil(f"/proc/{pid}/smaps_rollup").splitlines()[1:]
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(b":") for line in lines)}
        return (kib[b"Rss"] - kib[b"Pss"]) * 1024
    return 0
