"""The run's processes: what each has used since its start, and what memory is its own.

Where there is no /proc, psutil tells less. A process that is gone, or not ours to look at, is left out.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from penstock.watcher.machine.procfs import read_all, read_quickly

SHARED_BUDGET_S = 0.001
"""CPU time a sample may spend, in the long run, on finding out what processes share."""
SHARED_EVERY_S = 10.0
_PROC = os.path.exists("/proc/self/stat")
_CHILDREN = os.path.exists("/proc/thread-self/children")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

Key = tuple[int, float]
"""A process: its number, and when it started, because numbers come again."""
Workers = Mapping[int, tuple[int, int]]
"""pid → (loader, worker)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """Sums of one process since its start."""

    worker: int | None = None
    loader: int = -1
    cpu_s: float = 0.0
    """Of all its threads."""
    children_cpu_s: float = 0.0
    """Of children that have ended: a process that ends between two readings is found here, in its parent."""
    thread_cpu_s: float | None = None
    """Of its main thread, which does the work in a loader's worker and drives the training in the main process."""
    queue_s: float = 0.0
    """Of that thread."""
    cores: int | None = None
    """That it may run on, where the system tells."""
    memory_bytes: int = 0


def process_readings(workers: Workers) -> dict[Key, ProcessReading]:
    """The main process first, then all that came from it."""
    found: dict[Key, ProcessReading] = {}
    main = os.getpid()
    for pid in dict.fromkeys([main, *_descendants(main), *workers]):
        loader, worker = workers.get(pid, (-1, -2))
        with suppress(OSError, ValueError, IndexError, psutil.Error):  # gone, or not ours to look at
            key, reading = _of_proc(pid) if _PROC else _of_psutil(pid)
            role = {} if pid == main else {"loader": loader, "worker": worker}
            found[key] = replace(reading, **role)
    return found


def _of_proc(pid: int) -> tuple[Key, ProcessReading]:
    numbers = read_quickly(f"/proc/{pid}/stat").rpartition(b")")[2].split()  # from the third field on, "state"
    user, system, children_user, children_system = map(int, numbers[11:15])
    thread_cpu_s, queue_s = None, 0.0
    with suppress(OSError, ValueError, IndexError):
        ran, waited = map(int, read_quickly(f"/proc/{pid}/schedstat").split()[:2])
        thread_cpu_s, queue_s = ran / 1e9, waited / 1e9
    return (pid, int(numbers[19])), ProcessReading(
        cpu_s=(user + system) / _TICKS_PER_S,
        children_cpu_s=(children_user + children_system) / _TICKS_PER_S,
        thread_cpu_s=thread_cpu_s,
        queue_s=queue_s,
        cores=len(os.sched_getaffinity(pid)) if hasattr(os, "sched_getaffinity") else None,
        memory_bytes=int(read_quickly(f"/proc/{pid}/statm").split()[1]) * PAGE_BYTES,  # in stat it may lag behind
    )


def _of_psutil(pid: int) -> tuple[Key, ProcessReading]:
    process = psutil.Process(pid)
    times = process.cpu_times()
    return (pid, process.create_time()), ProcessReading(
        cpu_s=times.user + times.system,
        children_cpu_s=times.children_user + times.children_system,
        memory_bytes=process.memory_info().rss,
    )


def _descendants(pid: int) -> list[int]:
    """Children of any thread, and theirs. The kernel's own lists are ten times cheaper than a walk through /proc."""
    if not _CHILDREN:
        with suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return []
    found: list[int] = []
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                for child in map(int, read_quickly(f"/proc/{pid}/task/{thread}/children").split()):
                    found += [child, *_descendants(child)]
    return found


@dataclass(frozen=True, slots=True)
class _SharedMemorySample:
    """What one process of a group was seen to share with others."""

    at_s: float = float("-inf")
    shared_bytes: int = 0
    turn: int = -1
    """Whose it was: members of a group are looked at in turn."""


_NEVER = _SharedMemorySample()


class SharedMemoryEstimate:
    """How much of its resident memory a process shares with others of the run, looked up now and then.

    PSS counts a page once over all who share it, but the kernel walks all pages of a process to tell: 10 ms for a GB.
    So one worker speaks for all of its loader, and until the next look its shared part is taken to be as it was.
    """

    def __init__(self) -> None:
        self._looks: dict[object, _SharedMemorySample] = {}
        self._budget_s = 0.0

    def without_shared(self, processes: dict[Key, ProcessReading], at_s: float) -> dict[Key, ProcessReading]:
        """PSS in the place of RSS, as well as it is known."""
        groups: dict[object, list[int]] = defaultdict(list)
        for key, process in processes.items():
            groups[_group(key, process)].append(key[0])
        self._looks = {group: look for group, look in self._looks.items() if group in groups}
        self._look(groups, at_s)
        found: dict[Key, ProcessReading] = {}
        for key, process in processes.items():
            shared_bytes = self._looks.get(_group(key, process), _NEVER).shared_bytes
            found[key] = replace(process, memory_bytes=max(0, process.memory_bytes - shared_bytes))
        return found

    def _look(self, groups: Mapping[object, list[int]], at_s: float) -> None:
        """At those not looked at for longest, larger groups first, as far as the time allows; debts are paid off."""
        self._budget_s = min(SHARED_BUDGET_S, self._budget_s + SHARED_BUDGET_S)
        looks = {group: self._looks.get(group, _NEVER) for group in groups}
        for group in sorted(groups, key=lambda group: (looks[group].at_s, -len(groups[group]))):
            if self._budget_s <= 0 or at_s - looks[group].at_s < SHARED_EVERY_S:
                return
            began_s = time.thread_time()
            turn = looks[group].turn + 1
            self._looks[group] = _SharedMemorySample(
                at_s, _shared_bytes(groups[group][turn % len(groups[group])]), turn
            )
            self._budget_s -= time.thread_time() - began_s


def _group(key: Key, process: ProcessReading) -> object:
    """Workers of one loader are forks of one parent; everybody else is alone."""
    return process.loader if process.loader >= 0 else key


def _shared_bytes(pid: int) -> int:
    """RSS less PSS; 0 where the system does not tell."""
    with suppress(OSError, ValueError, KeyError):
        lines = read_all(f"/proc/{pid}/smaps_rollup").splitlines()[1:]
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(b":") for line in lines)}
        return (kib[b"Rss"] - kib[b"Pss"]) * 1024
    return 0
