"""A workload on a storage with a measured curve: its rate depends on the number of reads in flight.

A worker reads one thing at a time, so at most W reads are in flight. Their number q follows from Little's law: it
counts the workers that do no other work, q = W - X·(seconds of other work), while the storage gives X = rate(q). This
is a fixed point; where a disk with seeks has several, the one with the most reads in flight is taken, because at the
start of an epoch all workers read at once.

A disk with one head is slow because other readers have moved the head since a reader's last read, not because they read
at the same moment: two workers that read alternately are as slow as two that wait for the disk together
(`single_head`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf

import numpy as np

from penstock.errors import SettingError
from penstock.model.simulation_data import WorkerPool
from penstock.model.workload import Workload

Curve = Sequence[tuple[float, float, float]]
"""Points of a storage: (reads in flight, bytes per second, requests per second) of all readers, rising in the first."""

GRID = 512
"""Points between 0 and W at which the fixed point is searched; the interval between two of them is then bisected."""
BISECTIONS = 40
BYTES, REQUESTS = 1, 2
"""Columns of a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageReads:
    """The reads that a batch needs, and the rates that the storage reaches."""

    curve: tuple[tuple[float, float, float], ...]
    batch_bytes: float
    """0: the bytes set no bound."""
    batch_requests: float = 0.0
    """0: the requests set no bound."""
    single_head: bool = False
    """Two workers count as two reads in flight, no matter when they read."""
    ahead: bool = False
    """The system reads ahead between requests, so the rate is that of the device for any number of reads in flight."""

    def __post_init__(self) -> None:
        depths = [point[0] for point in self.curve]
        if not depths or depths != sorted(set(depths)) or not all(0 < number < inf for number in depths):
            raise SettingError(f"a storage curve rises by reads in flight, not {depths}")
        if not (0 <= self.batch_bytes < inf and 0 <= self.batch_requests < inf):
            raise SettingError(f"{self.batch_bytes} bytes in {self.batch_requests} requests are no batch")
        if not self.batch_bytes and not self.batch_requests:
            raise SettingError("a batch that reads nothing needs no storage curve")
        used = [point[column] for column, amount in self._amounts() if amount for point in self.curve]
        if not all(0 < number < inf for number in used):
            raise SettingError("a storage curve holds rates above 0")

    def bytes_s(self, in_flight: float) -> float:
        """Return the bytes per second of the storage.

        The curve is linear between its points; below the first, each reader gets the rate that it has there; beyond
        the last, the rate stays.
        """
        return self._rate(BYTES, in_flight)

    def requests_s(self, in_flight: float) -> float:
        """Return the requests per second of the storage, interpolated like the bytes."""
        return self._rate(REQUESTS, in_flight)

    def batches_s(self, in_flight: float) -> float:
        """Return the batches per second, by the bytes or by the requests, whichever gives less."""
        return min(self._rate(column, in_flight) / amount for column, amount in self._amounts() if amount)

    def residence_s(self, in_flight: float) -> float:
        """Return the seconds that the reads of a batch take, by Little's law: R = q / X(q)."""
        return in_flight / self.batches_s(in_flight)

    def depth(self, in_flight: float, workers: int) -> float:
        """Return the point of the curve that applies for so many workers with so many reads in flight."""
        return max(in_flight, min(2.0, workers)) if self.single_head else in_flight

    def in_flight(self, workers: int, other_s: float) -> float:
        """Return the reads in flight of workers that never wait for the loop and do `other_s` of other work a batch."""

        def surplus(q: float) -> float:  # workers that neither read nor do other work would start a read
            return workers - other_s * self.batches_s(self.depth(q, workers)) - q

        high = float(workers)
        low = next((q for q in np.linspace(high, 0.0, GRID, endpoint=False)[1:] if surplus(q) >= 0), 0.0)
        if low:
            high = min(high, low + workers / GRID)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if surplus(middle) >= 0 else (low, middle)
        return float(high)

    def _amounts(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Return each rate column of the curve with the amount that a batch needs of it."""
        return (BYTES, self.batch_bytes), (REQUESTS, self.batch_requests)

    def _rate(self, column: int, in_flight: float) -> float:
        depths, rates = zip(*((point[0], point[column]) for point in self.curve), strict=True)
        return float(np.interp(in_flight, (0.0, *depths), (0.0, *rates)))


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredWorkload(Workload):
    """A workload whose `io_s` are the seconds of a batch with one read in flight; edits keep the storage curve."""

    reads: StorageReads

    def worker_pool(self) -> WorkerPool:
        """Return the worker pool of the workload, with this storage."""
        reads, single = self.reads, self.reads.batches_s(1.0)
        return replace(
            super().worker_pool(), storage=lambda readers: reads.batches_s(reads.depth(readers, self.workers)) / single
        )


def on_storage(
    workload: Workload, curve: Curve, *, batch_bytes: float, batch_requests: float = 0.0, **properties: bool
) -> StoredWorkload:
    """Return the workload reading so much per batch from a storage with this curve.

    Differences between the read times of the batches are kept. `properties` are flags of StorageReads.
    """
    reads = StorageReads(curve=tuple(curve), batch_bytes=batch_bytes, batch_requests=batch_requests, **properties)
    single_s = reads.residence_s(1.0)
    mean_s = float(workload.io_s.mean())
    io_s = workload.io_s * (single_s / mean_s) if mean_s > 0 else np.array([single_s])
    copied = {field.name: getattr(workload, field.name) for field in fields(Workload)}
    return StoredWorkload(**{**copied, "io_s": io_s}, reads=reads)
