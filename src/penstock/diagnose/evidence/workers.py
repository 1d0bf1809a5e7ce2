"""The workers: what each batch took them, and in which states and functions their threads were sampled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.arrays import amount_before, mean, weighted_median
from penstock.core.types import Floats, Ints
from penstock.diagnose.evidence.loop import LoopEvidence, by_frequency, shares
from penstock.diagnose.evidence.settings import SettingsEvidence
from penstock.recording.format import FetchLine, LoaderLine, StackSamplesLine
from penstock.recording.reader import Recording

THREAD_MODULES = ("threading:", "queue:", "concurrent.futures")
"""Modules whose functions wait for other threads of the same process."""
UNEQUAL_COUNTS = 0.15
"""Part of a worker that is added before rounding down: workers that get equal numbers of batches differ by chance."""


@dataclass(frozen=True)
class WorkerEvidence:
    """The batches of one loader as its workers made them; arrays hold one number for each batch."""

    recording: Recording
    loader: LoaderLine
    fetches: tuple[FetchLine, ...]
    """One line for each batch that was made, by epoch and batch."""
    settings: SettingsEvidence
    loop: LoopEvidence

    # -- times -----------------------------------------------------------------------------------------------------

    @cached_property
    def fetch_s(self) -> Floats:
        """Seconds that the worker took for the batch."""
        return np.array([fetch.fetch_s for fetch in self.fetches])

    @cached_property
    def cpu_s(self) -> Floats:
        """Seconds of these on a core."""
        return np.array([fetch.cpu_s for fetch in self.fetches])

    @cached_property
    def queue_s(self) -> Floats:
        """Seconds of these in which the worker was ready to run and waited for a core."""
        return np.array([fetch.queue_s for fetch in self.fetches])

    @cached_property
    def gc_s(self) -> Floats:
        """Seconds of these in the garbage collector, limited to the CPU seconds: the clocks are read one by one."""
        return np.minimum([fetch.gc_s for fetch in self.fetches], self.cpu_s)

    @cached_property
    def blocked_s(self) -> Floats:
        """Seconds of these in which the worker waited for something else: storage, network, a lock, a timer."""
        return np.maximum(self.fetch_s - self.cpu_s - self.queue_s, 0.0)

    @cached_property
    def collate_s(self) -> Floats:
        """Seconds of these in which samples were collated, limited to the whole: the clocks are read one by one."""
        return np.array([min(fetch.collate_s, fetch.fetch_s) for fetch in self.fetches])

    @cached_property
    def mean_fetch_s(self) -> float:
        """Mean seconds that a worker takes for a batch."""
        return mean(self.fetch_s)

    def share_of_fetch(self, seconds: Floats) -> float:
        """Return the share of these seconds in the time that workers take for their batches."""
        total = float(self.fetch_s.sum())
        return float(seconds.sum()) / total if total > 0 else 0.0

    # -- workers ---------------------------------------------------------------------------------------------------

    @cached_property
    def batch_worker(self) -> Ints:
        """Number of the worker that made the batch."""
        return np.array([fetch.worker for fetch in self.fetches], np.int64)

    @cached_property
    def effective_workers(self) -> int:
        """Number of workers that could have made these batches had each made as many as the busiest one.

        A dataset that divides its samples between the workers itself may leave some of them with fewer, or with none.
        """
        num_workers = self.settings.num_workers
        counts = np.unique(self.batch_worker[self.batch_worker >= 0], return_counts=True)[1]
        if num_workers < 2 or self.loader.dataset_size is not None or not len(counts):
            return num_workers
        return max(1, min(num_workers, int(counts.sum() / counts.max() + UNEQUAL_COUNTS)))

    @cached_property
    def utilisation(self) -> float:
        """Share of the workers' time in which they made batches, by the utilisation law."""
        cycle_s = self.loop.cycle_s
        return self.mean_fetch_s / (max(1, self.settings.num_workers) * cycle_s) if cycle_s > 0 else 0.0

    @cached_property
    def fetch_cores(self) -> float:
        """Number of cores that making batches keeps busy while the loop waits, on the threads that make them.

        It is the median over the time of waiting. Each batch is taken to compute evenly over its time.
        """
        begins, ends = self.loop.stalls
        mean_cores = float(self.cpu_s.sum()) / self.loop.steady_s if self.loop.steady_s > 0 else 0.0
        long = ends > begins
        if not self.fetches or not long.any():
            return mean_cores
        began_s = np.array([fetch.at_s for fetch in self.fetches])
        before, after = (amount_before(times, began_s, began_s + self.fetch_s, self.cpu_s) for times in (begins, ends))
        cores = (after - before)[long] / (ends - begins)[long]
        return weighted_median(cores, (ends - begins)[long]) or mean_cores

    # -- stack samples ---------------------------------------------------------------------------------------------

    @cached_property
    def states(self) -> dict[str, float]:
        """Shares of the time of making batches by the state that the worker was sampled in, see `StackSamplesLine`.

        Waiting for one of Python's own locks is waiting for threads of the same process, not for another worker: where
        that is what "lock" means, it is named "threads".
        """
        states = shares(line.states for line in self._stack_samples())
        in_threads = sum(share for name, share in self.functions.items() if name.startswith(THREAD_MODULES))
        if "lock" in states and in_threads >= states["lock"] / 2:
            states["threads"] = states.pop("lock")
        return states

    def blocked_in(self, *states: str) -> float:
        """Return the share of the workers' blocked time in these states; "running" is not blocked."""
        blocked = {state: share for state, share in self.states.items() if state != "running"}
        total = sum(blocked.values())
        return sum(blocked.get(state, 0.0) for state in states) / total if total > 0 else 0.0

    @cached_property
    def functions(self) -> dict[str, float]:
        """Shares of the stack samples by innermost function, the most frequent first."""
        return by_frequency(shares(line.functions for line in self._stack_samples()))

    def _stack_samples(self) -> Iterator[StackSamplesLine]:
        for line in self.recording.stack_samples:
            if line.worker is not None and line.loader == self.loader.loader:
                yield line
