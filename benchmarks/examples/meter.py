"""Stands where an example's loader stood: how long the loop has no batch, and how long everything takes.

On a GPU both are read from the GPU's clock. A mark lies in its queue behind the last step, another in front of the
next: between them the GPU has no batch, be it that it is late or that it is still being copied. Where the loop is ahead
of the GPU, there is no time between them, however long the loop itself has waited.
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
    """After the warm-up."""

    iterations: int
    samples: int
    seconds: float
    data_s: float
    """Of these, without a batch."""

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
    """When enough was seen: after so many batches and as many seconds, both counted from the end of the warm-up."""

    warm_up: int
    """Batches, and more of them until `warm_up_s` has passed: workers have started by then."""
    iterations: int
    seconds: float
    warm_up_s: float = 0.0


class Meter:
    """Gives the loader's batches, pass after pass, until enough was seen."""

    def __init__(self, loader: Iterable[Any], limits: Limits, clock: Clock = SYSTEM_CLOCK) -> None:
        self._loader = loader
        self._limits = limits
        self._clock = clock
        self._marker: _Marker = _Card() if torch.cuda.is_available() else _Host(clock)
        self._marks: list[tuple[Any, Any]] = []
        self._samples: list[int] = []
        self._end: Any = None
        self._first = 0
        """The first batch after the warm-up."""

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
            asked = self._marker.mark()
            batch = next(batches)
            self._marks.append((asked, self._marker.mark()))
            self._samples.append(samples_of(batch))
            yield batch
            del batch  # else its memory would be held here while the next one is waited for
        self._end = self._marker.mark()

    def pace(self) -> Pace:
        """To be asked when the training has ended."""
        first = self._first
        counted = self._marks[first:]
        return Pace(
            iterations=len(counted),
            samples=sum(self._samples[first:]),
            seconds=self._marker.between(counted[0][0], self._end),
            data_s=sum(self._marker.between(asked, got) for asked, got in counted),
        )


def samples_of(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))


class _Marker(Protocol):
    def mark(self) -> Any: ...
    def between(self, first: Any, second: Any) -> float: ...


class _Host:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def mark(self) -> float:
        return self._clock.now()

    def between(self, first: float, second: float) -> float:
        return second - first


class _Card:
    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        second.synchronize()
        return first.elapsed_time(second) / 1e3
