"""A wrapper of an example's loader that measures the training, and the part of its time without a batch.

With a GPU both are measured on the GPU's clock: one event is recorded behind the last step, another before the next.
Between them the GPU has no batch, because the batch is late or still being copied. If the loop is ahead of the GPU,
there is no time between the events, however long the loop itself has waited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Protocol

import torch

from penstock.core.clock import SYSTEM_CLOCK, Clock


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of a training after the warm-up."""

    iterations: int
    samples: int
    seconds: float
    data_s: float
    """Seconds of these in which the device had no batch."""

    @property
    def iterations_s(self) -> float:
        return self.iterations / self.seconds

    @property
    def samples_s(self) -> float:
        return self.samples / self.seconds

    @property
    def data_share(self) -> float:
        return self.data_s / self.seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a Meter measures: at least so many iterations and at least so many seconds, both after the warm-up."""

    warm_up: int
    """Batches of the warm-up at least; it lasts until the workers have started."""
    iterations: int
    seconds: float
    warm_up_s: float = 0.0
    """Seconds of the warm-up at least."""


class Meter:
    """An iterable over the loader's batches, epoch after epoch, until the limits are reached."""

    def __init__(self, loader: Iterable[Any], limits: Limits, clock: Clock = SYSTEM_CLOCK) -> None:
        self._loader = loader
        self._limits = limits
        self._clock = clock
        self._timer: _Timer = _GpuTimer() if torch.cuda.is_available() else _HostTimer(clock)
        self._marks: list[tuple[Any, Any]] = []
        """Two marks for each batch: when it was requested, and when the loop got it."""
        self._samples: list[int] = []
        """Samples of each batch."""
        self._end: Any = None
        self._first = 0
        """Number of the first batch after the warm-up."""

    def __iter__(self) -> Iterator[Any]:
        batches = chain.from_iterable(repeat(self._loader))
        limits, begin_s = self._limits, self._clock.now()
        until_s: float | None = None
        while until_s is None or len(self._samples) < self._first + limits.iterations or self._clock.now() < until_s:
            if (
                until_s is None
                and len(self._samples) >= limits.warm_up
                and self._clock.now() - begin_s >= limits.warm_up_s
            ):
                self._first = len(self._samples)
                until_s = self._clock.now() + limits.seconds
            requested = self._timer.mark()
            batch = next(batches)
            self._marks.append((requested, self._timer.mark()))
            self._samples.append(samples_of(batch))
            yield batch
            del batch  # else this reference would keep its memory in use while the next batch is awaited
        self._end = self._timer.mark()

    def pace(self) -> Pace:
        """Return the speed; only after the training has ended."""
        first = self._first
        counted = self._marks[first:]
        return Pace(
            iterations=len(counted),
            samples=sum(self._samples[first:]),
            seconds=self._timer.between(counted[0][0], self._end),
            data_s=sum(self._timer.between(requested, received) for requested, received in counted),
        )


def samples_of(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))


class _Timer(Protocol):
    def mark(self) -> Any:
        """Return a mark of the current time of the device."""

    def between(self, first: Any, second: Any) -> float:
        """Return the seconds between two marks."""


class _HostTimer:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def mark(self) -> float:
        return self._clock.now()

    def between(self, first: float, second: float) -> float:
        return second - first


class _GpuTimer:
    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        second.synchronize()
        return first.elapsed_time(second) / 1e3
