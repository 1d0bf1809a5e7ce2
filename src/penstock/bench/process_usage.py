"""CPU seconds and memory of a process and all its descendants."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Literal, Self

import psutil

INTERVAL_S = 0.05
"""Seconds between two samples of the memory."""
SAMPLING_SHARE = 0.05
"""Largest share of the time to spend on sampling: the PSS of each process with torch takes about 2 ms, and finding the
children takes another 2 ms."""

MemoryKind = Literal["pss", "rss"]
MEMORY_KIND: MemoryKind = "pss" if sys.platform == "linux" else "rss"
"""PSS counts a page shared by n processes 1/n times in each. Elsewhere RSS: shared pages count once per process."""


def cpu_seconds() -> float | None:
    """Return user and system time of this process and all its descendants, including ended ones.

    Return None on Windows, which does not keep the times of ended processes.
    """
    if sys.platform == "win32":
        return None
    import resource

    ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in ended) + _sum_over(_descendants(), _own_cpu_s)


def tree_memory_bytes() -> int:
    """Return the current memory of this process and its descendants, of the kind MEMORY_KIND."""
    return int(_sum_over([psutil.Process(), *_descendants()], _memory_bytes))


class MemoryPeak:
    """The highest `tree_memory_bytes` inside a `with` block, sampled by a thread."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.own_cpu_s = 0.0
        """CPU seconds of the sampling itself, to be subtracted from the measured ones; known after the `with` block."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-memory-peak", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            ended = self._ended.is_set()  # read before the sample, so that the last sample is taken after the end
            began = time.perf_counter()
            self.peak_bytes = max(self.peak_bytes, tree_memory_bytes())
            if ended:
                break
            self._ended.wait(max(INTERVAL_S, (time.perf_counter() - began) / SAMPLING_SHARE))
        self.own_cpu_s = time.thread_time()


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _sum_over(processes: list[psutil.Process], number: Callable[[psutil.Process], float]) -> float:
    """Sum a number over processes; those that have ended meanwhile count nothing."""
    total = 0.0
    for process in processes:
        try:
            total += number(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def _own_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _memory_bytes(process: psutil.Process) -> int:
    if MEMORY_KIND == "pss":
        return int(process.memory_full_info().pss)
    return int(process.memory_info().rss)
