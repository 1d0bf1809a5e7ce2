"""A run on a storage whose curve is known: what it gives depends on how many reads are in flight.

A worker reads one thing at a time, so at most W reads are in flight. How many there are, q, follows from Little's law:
those workers that do nothing else, q = W - X·(seconds of other work), while the storage gives X = rate(q). That is a
fixed point; where a thrashing disk has several, the one with the most in flight is taken, because a pass begins with
all workers reading at once.

A disk with one head is slow because others have moved it since a reader's last read, not because they read at the same
moment: two workers that take turns are as bad for it as two that wait for it together (`one_head`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf

import numpy as np

from penstock.errors import SettingError
from penstock.model.simulation_input import WorkerPool
from penstock.model.workload import Workload

Curve = Sequence[tuple[float, float, float]]
"""Of a storage: (reads in flight, bytes per second, requests per second), all readers together, rising in the first."""

GRID = 512
"""Places between 0 and W at which the fixed point is looked for; between two of them it is halved."""
HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageReads:
    """What a batch asks of the storage, and what the storage can give."""

    curve: tuple[tuple[float, float, float], ...]
    batch_bytes: float
    """0: bytes do not bound anything."""
    batch_requests: float = 0.0
    """0: requests do not bound anything."""
    one_head: bool = False
    """Two workers count as two reads in flight, whenever they read."""
    ahead: bool = False
    """The system reads on while nobody asks: what is waited for is the device's rate alone, however few ask for it."""

    def __post_init__(self) -> None:
        depths = [point[0] for point in self.curve]
        if not depths or depths != sorted(set(depths)) or not all(0 < number < inf for number in depths):
            raise SettingError(f"a storage curve rises by reads in flight, not {depths}")
        if not (0 <= self.batch_bytes < inf and 0 <= self.batch_requests < inf):
            raise SettingError(f"{self.batch_bytes} bytes in {self.batch_requests} requests are no batch")
        if not self.batch_bytes and not self.batch_requests:
            raise SettingError("a batch that reads nothing needs no storage curve")
        used = [point[at] for at, asked in self._asked() if asked for point in self.curve]
        if not all(0 < number < inf for number in used):
            raise SettingError("a storage curve holds rates above 0")

    def bytes_s(self, in_flight: float) -> float:
        """Straight between the points; below the first each reader gets what it gets there; beyond the last no more."""
        return self._rate(1, in_flight)

    def requests_s(self, in_flight: float) -> float:
        """The same, in requests."""
        return self._rate(2, in_flight)

    def batches_s(self, in_flight: float) -> float:
        """Of which whatever is slower sets the pace."""
        return min(self._rate(at, in_flight) / asked for at, asked in self._asked() if asked)

    def residence_s(self, in_flight: float) -> float:
        """Of a batch in the storage, by Little's law: R = q / X(q)."""
        return in_flight / self.batches_s(in_flight)

    def depth(self, in_flight: float, workers: int) -> float:
        """Where on the curve so many workers are with so many reads in flight."""
        return max(in_flight, min(2.0, workers)) if self.one_head else in_flight

    def in_flight(self, workers: int, other_s: float) -> float:
        """Reads in flight when workers never wait for the loop and do `other_s` of other work per batch."""

        def surplus(q: float) -> float:  # workers that neither read nor work would start to read
            return workers - other_s * self.batches_s(self.depth(q, workers)) - q

        high = float(workers)
        low = next((q for q in np.linspace(high, 0.0, GRID, endpoint=False)[1:] if surplus(q) >= 0), 0.0)
        if low:
            high = min(high, low + workers / GRID)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if surplus(middle) >= 0 else (low, middle)
        return float(high)

    def _asked(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Which column of the curve, and what a batch asks of it."""
        return (1, self.batch_bytes), (2, self.batch_requests)

    def _rate(self, column: int, in_flight: float) -> float:
        depths, rates = zip(*((point[0], point[column]) for point in self.curve), strict=True)
        return float(np.interp(in_flight, (0.0, *depths), (0.0, *rates)))


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredWorkload(Workload):
    """A workload whose `io_s` is what a batch takes with one read in flight; edits keep the curve."""

    reads: StorageReads

    def crew(self) -> WorkerPool:
        """As ever, with this storage."""
        reads, alone = self.reads, self.reads.batches_s(1.0)
        return replace(
            super().crew(), storage=lambda readers: reads.batches_s(reads.depth(readers, self.workers)) / alone
        )


def on_storage(
    workload: Workload, curve: Curve, *, batch_bytes: float, batch_requests: float = 0.0, **manners: bool
) -> StoredWorkload:
    """The same run reading so much per batch from this storage; where batches read unequally long, they still do."""
    reads = StorageReads(curve=tuple(curve), batch_bytes=batch_bytes, batch_requests=batch_requests, **manners)
    alone_s = reads.residence_s(1.0)
    usual_s = float(workload.io_s.mean())
    io_s = workload.io_s * (alone_s / usual_s) if usual_s > 0 else np.array([alone_s])
    kept = {each.name: getattr(workload, each.name) for each in fields(Workload)}
    return StoredWorkload(**{**kept, "io_s": io_s}, reads=reads)
