"""What the simulator is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import SettingError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PARTS = ("alone_s", "io_s", "serial_s", "cpu_s")
"""Of making a batch, in this order: fetched, then decoded."""
ALONE, IO, SERIAL, CPU = range(len(PARTS))


def constant(_in_service: int) -> float:
    """Storage that gives the same in all, however many ask."""
    return 1.0


@dataclass(frozen=True, eq=False)
class BatchCosts:
    """What each batch needs. Seconds are those that it would take with nobody else there."""

    work: Floats
    """Of its worker: a row per part (see PARTS), a column per batch."""
    handover_s: Floats
    """Of the main process, on a core that workers may want too, to take it from one; nothing where there are none."""
    step_s: Floats
    """Of the training loop, per step; with in_order=False that is not the step of the batch of the same number."""
    step_cpu_s: Floats
    """Of it, on a core that workers may want too."""

    def __post_init__(self) -> None:
        if (self.step_cpu_s > self.step_s).any():
            raise SettingError("a step computes longer than it takes")

    def __len__(self) -> int:
        return len(self.step_s)


@dataclass(frozen=True, eq=False)
class WorkerPool:
    """Who makes batches, and what they share."""

    workers: int
    """0: the training loop itself."""
    prefetch: int = 2
    in_order: bool = True
    cores: float = inf
    burners: float = 0.0
    """Processes of others that always want a core."""
    storage: Callable[[int], float] = constant
    """How much faster than alone the storage serves so many together: n where it scales, 1 where it does not, less
    where they are in each other's way."""
    lag: Floats = field(default_factory=lambda: np.zeros((len(PARTS), 0)))
    """What each worker takes longer for any batch: a row per part, a column per worker; no columns: no lag."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.prefetch < 1:
            raise SettingError(f"{self.workers} workers with a prefetch factor of {self.prefetch} make no crew")
        if not self.cores > 0 or not 0 <= self.burners < inf:
            raise SettingError(f"{self.cores} cores with {self.burners} burners cannot run anything")
        if not all(0 < self.storage(number) < inf for number in range(1, self.workers + 2)):
            raise SettingError("storage that serves at no speed, or at once, is no storage")
        if self.lag.shape[1] not in (0, self.workers):
            raise SettingError(f"a lag for {self.lag.shape[1]} workers where there are {self.workers}")

    @property
    def window(self) -> int:
        """Steps after which in-order delivery repeats itself: means over anything else mislead."""
        return max(1, self.workers)

    @property
    def tasks(self) -> int:
        """Given out and not yet taken by the loop."""
        return self.workers * self.prefetch

    def core_share(self, wanting: int) -> float:
        """Of a core, for each of those who want one."""
        return self.core_share_of(wanting + self.burners)

    def crowding(self, others: float) -> float:
        """How much longer than by an equal share of all cores one takes who comes while so many others compute.

        A thread that wakes up stays on the core it was on and shares that one with the others there: 1 + others/cores
        in all, while an equal share of everything would be (1 + others)/cores. It finds an idle one unless all are
        taken by the time it looks: if each is with the share that is busy, that is this share to the power of cores.
        """
        busy = others / self.cores
        taken = busy if busy >= 1 else busy**self.cores
        return max(1.0, (1 + taken) * self.core_share_of(1 + others))  # of less than one core nobody gets more than all

    def core_share_of(self, wanting: float) -> float:
        """Of a core, for each of so many in all, strangers counted among them."""
        return min(1.0, self.cores / wanting)


@dataclass(frozen=True, eq=False)
class SimulatedRun:
    """What happened, on a clock that starts with the pass."""

    asked_s: Floats
    """When each step began to wait."""
    yielded_s: Floats
    """When it got its batch."""
    batch: Ints
    """Which one it got."""
    finished_s: Floats
    """When each batch was made, by batch; infinity where it was not by `end_s`."""
    worker: Ints
    """Who made it; -1: the main process, or nobody yet."""
    end_s: float
    """When the last step was over."""

    @cached_property
    def wait_s(self) -> Floats:
        """In the loader, per step."""
        return self.yielded_s - self.asked_s

    @cached_property
    def ready(self) -> Ints:
        """Batches made and not yet taken when each step asked, its own included."""
        made = np.searchsorted(np.sort(self.finished_s), self.asked_s, side="right")
        return np.asarray(made - np.arange(len(self.asked_s)), np.int64)

    def rate(self, window: int, skip: int = 0) -> float:
        """Batches per second after the first `skip`, over whole windows: see Crew.window."""
        whole = (len(self.yielded_s) - 1 - skip) // window * window
        if whole < 1:
            raise SettingError(f"{len(self.yielded_s)} steps hold no window of {window} after the first {skip}")
        seconds = self.yielded_s[skip + whole] - self.yielded_s[skip]
        return float(whole / seconds) if seconds > 0 else inf


def column(name: str, values: ArrayLike, length: int) -> Floats:
    """Seconds per batch, one number meaning the same for all; refused where they are no times."""
    found = np.asarray(values, np.float64)
    if found.ndim == 0:
        found = np.full(length, found)
    if found.shape != (length,):
        raise SettingError(f"{name} has the shape {found.shape} where there are {length} batches")
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise SettingError(f"{name} holds negative or infinite times")
    return found


def batches(
    count: int,
    *,
    step_s: ArrayLike = 0.0,
    handover_s: ArrayLike = 0.0,
    step_cpu_s: ArrayLike = 0.0,
    **work_s: ArrayLike,
) -> BatchCosts:
    """Batches from numbers (the same for each) or arrays; `work_s` by the names of PARTS."""
    if unknown := set(work_s) - set(PARTS):
        raise SettingError(f"{', '.join(sorted(unknown))}: no part of making a batch")
    return BatchCosts(
        np.stack([column(name, work_s.get(name, 0.0), count) for name in PARTS]),
        column("handover_s", handover_s, count),
        column("step_s", step_s, count),
        column("step_cpu_s", step_cpu_s, count),
    )
