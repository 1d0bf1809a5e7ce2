"""One loader of a recording, cut out of it, and how it was set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.recording.format import FetchLine, LoaderLine, StepLine
from penstock.recording.reader import Recording

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_WORKERS, MOST_PREFETCH = 10_000, 10_000
"""More than that nobody has: the number is damage, and the simulator would hold a place for each."""


@dataclass(frozen=True)
class LoaderSettingsEvidence:
    """The recording's lines about one loader, and its settings."""

    recording: Recording
    loader: LoaderLine
    steps: tuple[StepLine, ...]
    """Of this loader, in order, without the first of each pass."""
    firsts: tuple[StepLine, ...]
    """The first of each pass: their wait is start-up."""
    fetches: tuple[FetchLine, ...]
    """Of this loader, by pass and batch."""
    times_made: int = 1
    """By the script: once, or anew for each epoch."""

    def setting(self, name: str) -> object:
        """As in force; None where it is not known."""
        found = self.loader.settings.get(name)
        return None if found is None else found.in_force

    @cached_property
    def workers(self) -> int:
        """Worker processes; 0: the main process does it all."""
        number = self.setting("num_workers")
        if type(number) is int and 0 <= number <= MOST_WORKERS:
            return number
        return len({fetch.worker for fetch in self.fetches if fetch.worker >= 0})

    @cached_property
    def prefetch(self) -> int:
        """Batches ahead per worker."""
        number = self.setting("prefetch_factor")
        return number if type(number) is int and 1 <= number <= MOST_PREFETCH else 2

    @cached_property
    def in_order(self) -> bool:
        """Whether batches come in the order of the sampler."""
        return self.setting("in_order") is not False

    @cached_property
    def cores(self) -> float:
        """That the run may use."""
        machine = self.recording.run.machine
        usable, quota = max(1, machine.usable_cores), machine.quota_cores
        return min(usable, quota) if quota is not None and quota > 0 else usable

    @staticmethod
    def mean(values: Sequence[float] | Floats) -> float:
        """0 of nothing."""
        return float(np.mean(values)) if len(values) else 0.0
