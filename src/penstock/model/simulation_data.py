"""The input and the output of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from penstock.core.types import Floats, Ints
from penstock.errors import SettingError

STAGES = ("latency_s", "io_s", "lock_s", "cpu_s")
"""The stages in which a worker makes a batch: waiting for answers, shared storage, a shared lock, computing."""
LATENCY, IO, LOCK, CPU = range(len(STAGES))


def constant_throughput(_readers: int) -> float:
    """Return the throughput of a storage that delivers the same in all, however many readers it has."""
    return 1.0


@dataclass(frozen=True, eq=False)
class BatchCosts:
    """Seconds that each batch costs if nothing else runs at the same time."""

    work: Floats
    """Seconds of its worker: a row per stage (see STAGES), a column per batch."""
    receive_s: Floats
    """Seconds of the main process, on a core, to receive the batch from a worker; unused without workers."""
    step_s: Floats
    """Seconds of each step of the training loop. With in_order=False, step i may take another batch than batch i."""
    step_cpu_s: Floats
    """Seconds of the step that need a core, which workers may want too."""

    def __post_init__(self) -> None:
        if (self.step_cpu_s > self.step_s).any():
            raise SettingError("a step computes longer than it takes")

    def __len__(self) -> int:
        return len(self.step_s)


@dataclass(frozen=True, eq=False)
class WorkerPool:
    """The workers of one loader, and the resources that they share."""

    workers: int
    """Number of worker processes; 0 if the training loop makes the batches itself."""
    prefetch: int = 2
    """Batches requested ahead, per worker."""
    in_order: bool = True
    cores: float = inf
    competitors: float = 0.0
    """Number of processes outside the run that always want a core."""
    step_threads: float = 1.0
    """Number of threads that compute in a step: those of a library share the cores with the workers."""
    storage: Callable[[int], float] = constant_throughput
    """Throughput of the storage for n readers, relative to one reader: n if it scales, 1 if it does not, less if
    readers slow each other down."""
    lag: Floats = field(default_factory=lambda: np.zeros((len(STAGES), 0)))
    """Seconds that each worker takes longer for any batch: a row per stage, a column per worker; no columns: no lag."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.prefetch < 1:
            raise SettingError(f"{self.workers} workers with a prefetch factor of {self.prefetch} cannot be simulated")
        if not self.cores > 0 or not 0 <= self.competitors < inf:
            raise SettingError(f"{self.cores} cores with {self.competitors} competing processes cannot be simulated")
        if not 1 <= self.step_threads < inf:
            raise SettingError(f"a step of {self.step_threads} threads cannot be simulated")
        if not all(0 < self.storage(number) < inf for number in range(1, self.workers + 2)):
            raise SettingError("the throughput of the storage must be positive and finite for every number of readers")
        if self.lag.shape[1] not in (0, self.workers):
            raise SettingError(f"a lag for {self.lag.shape[1]} workers where there are {self.workers}")

    @property
    def window(self) -> int:
        """Number of steps after which in-order delivery repeats itself; a mean over any other number misleads."""
        return max(1, self.workers)

    @property
    def outstanding_tasks(self) -> int:
        """Number of batches that are requested and not yet received by the loop."""
        return self.workers * self.prefetch

    def core_share(self, processes: int) -> float:
        """Return the share of a core that each of the run's processes gets if so many of them want one."""
        return self.share_of_cores(processes + self.competitors)

    def wake_up_slowdown(self, others: float, threads: float = 1.0) -> float:
        """Return the factor by which a thread computes slower than alone, if it wakes up while `others` compute.

        A thread that wakes up stays on its last core and shares it with the others on that core: it takes 1 +
        others/cores times as long, while with an equal share of all cores it would take (1 + others)/cores. It moves to
        an idle core if there is one. If each core is busy for a share of the time, all of them are with that share to
        the power of the number of cores. Of several threads that wake up together each is on another core, so that
        their share is nearer to an equal one.
        """
        busy = others / self.cores
        all_busy = busy if busy >= 1 else busy**self.cores
        return max(
            1.0, (1 + all_busy) * self.share_of_cores(threads + others)
        )  # of less than one core, at most all is given

    def share_of_cores(self, processes: float) -> float:
        """Return the share of a core that each of so many processes gets, competitors included."""
        return min(1.0, self.cores / processes)


@dataclass(frozen=True, eq=False)
class SimulatedRun:
    """The course of a simulated run, in seconds since the epoch began."""

    requested_s: Floats
    """When each step began to wait for its batch."""
    received_s: Floats
    """When each step had its batch."""
    batch: Ints
    """The batch that each step received."""
    finished_s: Floats
    """When each batch was made; infinity if it was not made by `end_s`."""
    worker: Ints
    """The worker that made each batch; -1: the main process, or the batch is not made yet."""
    end_s: float
    """When the last step ended."""

    @cached_property
    def wait_s(self) -> Floats:
        """Seconds that each step waited in the loader."""
        return self.received_s - self.requested_s

    @cached_property
    def ready_batches(self) -> Ints:
        """Number of batches made and not yet received when each step requested one, its own included."""
        made = np.searchsorted(np.sort(self.finished_s), self.requested_s, side="right")
        return np.asarray(made - np.arange(len(self.requested_s)), np.int64)

    def rate(self, window: int, skip: int = 0) -> float:
        """Return the batches per second after the first `skip`, over whole windows: see `WorkerPool.window`."""
        steps = (len(self.received_s) - 1 - skip) // window * window
        if steps < 1:
            raise SettingError(f"{len(self.received_s)} steps hold no window of {window} after the first {skip}")
        seconds = self.received_s[skip + steps] - self.received_s[skip]
        return float(steps / seconds) if seconds > 0 else inf


def batch_column(name: str, values: ArrayLike, length: int) -> Floats:
    """Return seconds per batch, where one number stands for all batches; refuse what cannot be a time."""
    seconds = np.asarray(values, np.float64)
    if seconds.ndim == 0:
        seconds = np.full(length, seconds)
    if seconds.shape != (length,):
        raise SettingError(f"{name} has the shape {seconds.shape} where there are {length} batches")
    if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
        raise SettingError(f"{name} holds negative or infinite times")
    return seconds


def make_batch_costs(
    count: int,
    *,
    step_s: ArrayLike = 0.0,
    receive_s: ArrayLike = 0.0,
    step_cpu_s: ArrayLike = 0.0,
    **work_s: ArrayLike,
) -> BatchCosts:
    """Return the costs of `count` batches, from one number for all or one for each; `work_s` by the names of STAGES."""
    if unknown := set(work_s) - set(STAGES):
        raise SettingError(f"{', '.join(sorted(unknown))}: not a stage of making a batch ({', '.join(STAGES)})")
    return BatchCosts(
        np.stack([batch_column(name, work_s.get(name, 0.0), count) for name in STAGES]),
        batch_column("receive_s", receive_s, count),
        batch_column("step_s", step_s, count),
        batch_column("step_cpu_s", step_cpu_s, count),
    )
