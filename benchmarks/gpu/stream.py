"""Count the samples per second that a loader delivers to the GPU, and the CPU time that each costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import psutil
import torch

from benchmarks.result import in_turns
from penstock import Loader
from penstock.core.stats import GpuTimes

Batch = Mapping[str, Any]

RESUME_WARM_UP_S = 1.5
"""Seconds that are not counted when a stream is resumed: the loader first delivers the batches it has kept, and then
all its workers start at the same time."""
IDLE_CHECK_S, MAX_IDLE_CHECKS, IDLE_CORES = 0.25, 40, 0.1
"""Seconds between two checks of the CPU time of all processes, the number of checks, and the cores that may be in use
when the next stream has its turn."""


@dataclass(frozen=True)
class Throughput:
    """The rate of a stream, and what it cost."""

    rate: float
    """Samples per second."""
    core_ms: float
    """CPU time per sample, of all processes, in milliseconds."""


class Stream:
    """Batches of endless epochs, counted during one or more periods; between these its loader is idle."""

    def __init__(
        self, batches: Callable[[], Iterable[Batch]], use: Callable[[Batch], object], warm_up_s: float
    ) -> None:
        """`use` is called with each batch; nothing is counted for `warm_up_s` seconds after the first batch."""
        self._batches = _endless(batches)
        self._use = use
        self._warm_up_s = warm_up_s

    def count(self, counted_s: float) -> Throughput:
        """Warm up, then count the batches of so many seconds, to the end of the last batch."""
        warm_up_s, self._warm_up_s = self._warm_up_s, RESUME_WARM_UP_S
        samples, cpu_s, count_start, first_batch = 0, 0.0, 0.0, 0.0
        for batch in self._batches:
            self._use(batch)
            now = time.perf_counter()
            first_batch = first_batch or now
            if count_start:
                samples += len(batch["__key__"])
                if now - count_start > counted_s:
                    break
            elif now - first_batch > warm_up_s:
                torch.cuda.synchronize()
                count_start, cpu_s = time.perf_counter(), _cpu_seconds()
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - count_start
        return Throughput(samples / elapsed, (_cpu_seconds() - cpu_s) / samples * 1e3)

    def close(self) -> None:
        """End the iteration. The processes that end then cost CPU time that must not be counted."""
        self._batches.close()


def measure_in_turns(streams: Sequence[Stream], counted_s: float) -> list[Throughput]:
    """Warm up all streams, measure them in turns, each once in every place of the order, and return the medians."""
    for stream in streams:
        _take_turn(stream, 0.0)
    found = in_turns([partial(_take_turn, stream, counted_s) for stream in streams], len(streams))
    return [Throughput(median(each.rate for each in turns), median(each.core_ms for each in turns)) for turns in found]


def _take_turn(stream: Stream, counted_s: float) -> Throughput:
    throughput = stream.count(counted_s)
    _wait_until_idle()
    return throughput


def _wait_until_idle() -> None:
    """Wait until the workers have finished the batches that they had begun when the iteration stopped."""
    cpu_s = _cpu_seconds()
    for _ in range(MAX_IDLE_CHECKS):
        time.sleep(IDLE_CHECK_S)
        before_s, cpu_s = cpu_s, _cpu_seconds()
        if cpu_s - before_s < IDLE_CORES * IDLE_CHECK_S:
            return
    print(f"still not idle after {MAX_IDLE_CHECKS * IDLE_CHECK_S:.0f} s", file=sys.stderr)


def gpu_times(loader: Loader) -> GpuTimes:
    """Return the GPU times of a loader that has delivered a batch."""
    times = loader.gpu_times
    assert times is not None
    return times


def to_gpu(batch: Batch) -> dict[str, torch.Tensor]:
    """Copy the tensors of a batch to the GPU, as a training loop does if its loader delivers to the CPU."""
    return {
        name: value.to("cuda", non_blocking=True) for name, value in batch.items() if isinstance(value, torch.Tensor)
    }


def _endless(batches: Callable[[], Iterable[Batch]]) -> Generator[Batch, None, None]:
    while True:
        yield from batches()


def _cpu_seconds() -> float:
    """Return the CPU time of this process and all its child processes, including those that have ended."""
    own = psutil.Process()
    times = own.cpu_times()
    total = times.children_user + times.children_system
    for process in (own, *own.children(recursive=True)):
        try:
            spent = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system
    return total
