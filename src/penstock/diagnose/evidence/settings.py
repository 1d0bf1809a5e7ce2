"""The settings of one loader, as they were in force during the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock.recording.format import FetchLine, LoaderLine

WORKERS_MAX, PREFETCH_MAX = 10_000, 10_000
"""Larger numbers are taken for damage to the recording: no run has them, and the simulator allocates by them."""


@dataclass(frozen=True)
class SettingsEvidence:
    """The settings of a loader; damaged or missing ones are replaced by what else the recording shows."""

    loader: LoaderLine
    fetches: Sequence[FetchLine]
    times_created: int = 1
    """How many times the script created this loader: once, or anew for each epoch."""

    def in_force(self, name: str) -> object:
        """Return the value of a setting as it was in force; None if it is unknown."""
        setting = self.loader.settings.get(name)
        return None if setting is None else setting.in_force

    @cached_property
    def num_workers(self) -> int:
        """Number of worker processes; 0 if the main process makes the batches itself."""
        number = self.in_force("num_workers")
        if type(number) is int and 0 <= number <= WORKERS_MAX:
            return number
        return len({fetch.worker for fetch in self.fetches if fetch.worker >= 0})

    @cached_property
    def prefetch_factor(self) -> int:
        """Batches that are requested ahead per worker; torch's default, 2, if it is unknown."""
        number = self.in_force("prefetch_factor")
        return number if type(number) is int and 1 <= number <= PREFETCH_MAX else 2

    @cached_property
    def in_order(self) -> bool:
        """Whether batches are delivered in the order of the sampler."""
        return self.in_force("in_order") is not False
