"""How many samples a second arrive on the card, and what they cost the cores."""

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

AGAIN_S = 1.5
"""Not counted when a stream goes on: a loader gives what it has kept, and then its workers begin all at once."""
LOOK_S, MOST_LOOKS, QUIET = 0.25, 40, 0.1
"""Between two looks at what all processes do, and how much of a core that may be when the next stream has its turn."""


@dataclass(frozen=True)
class Supply:
    rate: float
    """Samples per second."""
    core_ms: float
    """CPU time of all processes per sample."""


class Stream:
    """Batches without end, counted for a while, and again later: in between, whoever makes them has nothing to do."""

    def __init__(self, batches: Callable[[], Iterable[Batch]], use: Callable[[Batch], object], warm_s: float) -> None:
        """`use` is what is done with each batch; for so long after the first one, nothing is counted."""
        self._passes = _endless(batches)
        self._use = use
        self._warm_s = warm_s

    def count(self, counted_s: float) -> Supply:
        """Over as many passes as fill the time."""
        warm_s, self._warm_s = self._warm_s, AGAIN_S
        samples, cores, begin, start = 0, 0.0, 0.0, 0.0
        for batch in self._passes:
            self._use(batch)
            now = time.perf_counter()
            start = start or now
            if begin:
                samples += len(batch["__key__"])
                if now - begin > counted_s:
                    break
            elif now - start > warm_s:
                torch.cuda.synchronize()
                begin, cores = time.perf_counter(), _core_seconds()
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - begin
        return Supply(samples / elapsed, (_core_seconds() - cores) / samples * 1e3)

    def close(self) -> None:
        """Not to be counted: dozens of processes end."""
        self._passes.close()


def side_by_side(streams: Sequence[Stream], counted_s: float) -> list[Supply]:
    """Of each the median: all of them in turn, each once in every place, after everybody is warm."""
    for stream in streams:
        _turn(stream, 0.0)
    found = in_turns([partial(_turn, stream, counted_s) for stream in streams], len(streams))
    return [Supply(median(each.rate for each in own), median(each.core_ms for each in own)) for own in found]


def _turn(stream: Stream, counted_s: float) -> Supply:
    found = stream.count(counted_s)
    _until_quiet()
    return found


def _until_quiet() -> None:
    """Workers whose batches nobody takes any more still make those that they have begun."""
    seconds = _core_seconds()
    for _ in range(MOST_LOOKS):
        time.sleep(LOOK_S)
        before, seconds = seconds, _core_seconds()
        if seconds - before < QUIET * LOOK_S:
            return
    print(f"not quiet after {MOST_LOOKS * LOOK_S:.0f} s", file=sys.stderr)


def gpu_times(loader: Loader) -> GpuTimes:
    """Of a loader that has delivered something."""
    times = loader.gpu_times
    assert times is not None
    return times


def to_card(batch: Batch) -> dict[str, torch.Tensor]:
    """As a training loop does it for a loader that stops at the CPU."""
    return {
        name: value.to("cuda", non_blocking=True) for name, value in batch.items() if isinstance(value, torch.Tensor)
    }


def _endless(batches: Callable[[], Iterable[Batch]]) -> Generator[Batch, None, None]:
    while True:
        yield from batches()


def _core_seconds() -> float:
    """Of this process and all it started, those that have ended included."""
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
