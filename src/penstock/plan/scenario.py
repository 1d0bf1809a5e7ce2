"""A torch DataLoader where it runs: its settings, the run they gave, and the machine; and the same with others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isinf
from typing import Any, Self

from penstock.diagnose.suspect import Remedy
from penstock.model.workload import Workload
from penstock.plan.memory import MemoryFit, MemoryNeed, fits, torch_need
from penstock.plan.predict import Prediction, predict
from penstock.plan.profiles import ProfileGoal, WorkerStartCost, amortised

NO_START = WorkerStartCost(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """Of a torch DataLoader, as in force."""

    num_workers: int
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True
    multiprocessing_context: str | None = None
    """fork, forkserver or spawn; None: whatever the system does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingContext:
    """What is known about the machine and the training around the loader."""

    platform: str = ""
    """Begins with the system's name."""
    gpus: int = 0
    has_in_order: bool = True
    """Whether this torch knows the setting (2.6 and later)."""
    free_bytes: int | None = None
    """That the loader could take, with what it has already; None: memory cannot be checked."""
    shared_free_bytes: int | None = None
    batch_bytes: int | None = None
    worker_bytes: int | None = None
    """None: measured on the process that plans."""
    start: WorkerStartCost = NO_START
    epoch_batches: int | None = None
    passes: int = 2
    """Epochs of a run: the first start of workers that persist is shared out among them."""
    most_workers: int | None = None
    """That the dataset has something to give to: an iterable one deals whole shards."""
    copy_s: float = 0.0
    """Of a step, in copies to the device from memory that is not pinned."""
    device_s: float = 0.0
    """Of a step, on the device's own clock without copies: however quick these are, a step takes so long."""
    threads: float = 1.0
    """Cores' worth that run in one worker."""
    uncrowded: Remedy | None = None
    """The run with one thread in each worker; None where threads are in nobody's way."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario:
    """All that a proposal depends on; `with_settings` asks what else it could be."""

    workload: Workload
    settings: LoaderSettings
    place: TrainingContext
    goal: ProfileGoal
    samples_per_batch: float = 1.0
    measured_batches_s: float = 0.0
    """Between starts, of this very run: a model that says less is not believed. 0: not measured."""
    faster: float | None = None
    """Than the model makes it, so many times, the run was that all of this is asked from; None: this is the run."""

    def with_settings(self, **changes: Any) -> Self:
        """The same run with these settings."""
        names = {"num_workers": "workers", "prefetch_factor": "prefetch", "in_order": "in_order"}
        edits = {names[name]: value for name, value in changes.items() if name in names}
        settings = replace(self.settings, **changes)
        if not edits:
            return replace(self, settings=settings)
        return self._otherwise(self.workload.with_(**edits), settings)

    def cured(self, cure: Remedy) -> Self:
        """The same settings in a run that is otherwise."""
        return self._otherwise(cure(self.workload), self.settings)

    def _otherwise(self, workload: Workload, settings: LoaderSettings) -> Self:
        return replace(self, settings=settings, workload=workload, measured_batches_s=0.0, faster=self._scale)

    @cached_property
    def _scale(self) -> float:
        if self.faster is not None:
            return self.faster
        said = self.prediction.batches_s
        return max(1.0, self.measured_batches_s / said) if 0 < said < inf else 1.0

    @cached_property
    def prediction(self) -> Prediction:
        """Of the steady part."""
        return predict(self.workload, self.samples_per_batch)

    @cached_property
    def batches_s(self) -> float:
        """Over a whole epoch: workers that do not persist are started for each one."""
        place = self.place
        paid = 1 / max(1, place.passes) if self.settings.persistent_workers else 1.0
        start_s = place.start.seconds(self.settings.num_workers) * paid
        return amortised(max(self._steady, self.measured_batches_s), start_s, place.epoch_batches)

    @property
    def _steady(self) -> float:
        """Where the model had the run slower than it was, it has everything slower; but a law is a law."""
        said, bounds = self.prediction.batches_s, self.prediction.bounds
        return max(said, min(said * self._scale, bounds[0].rate)) if bounds else said

    @property
    def started(self) -> float:
        """Share of the rate between starts that is left with them."""
        between = max(self.prediction.batches_s, self.measured_batches_s)
        return self.batches_s / between if 0 < between < inf else 1.0

    @property
    def samples_s(self) -> float:
        """The same in samples."""
        return self.batches_s * self.samples_per_batch

    def gain_over(self, other: Scenario) -> float:
        """More samples per second: 0.5 is half as many again. What takes no time can gain none."""
        return 0.0 if isinf(other.batches_s) else self.batches_s / other.batches_s - 1

    @cached_property
    def need(self) -> MemoryNeed | None:
        """Memory; None where the size of a batch is not known."""
        if self.place.batch_bytes is None:
            return None
        return torch_need(
            workers=self.settings.num_workers,
            prefetch=self.settings.prefetch_factor,
            batch_bytes=self.place.batch_bytes,
            worker_bytes=self.place.worker_bytes,
            pinned=self.settings.pin_memory,
        )

    def fit(self, share: float = 1.0) -> MemoryFit | None:
        """Into so large a share of the memory that is free; None where nobody can tell."""
        if self.need is None or self.place.free_bytes is None:
            return None
        return fits(self.need, self.place.free_bytes, shared_free=self.place.shared_free_bytes, share=share)

    @property
    def overflows(self) -> bool:
        """Whether it certainly does not fit into what is free."""
        fit = self.fit()
        return fit is not None and not fit

    def allowed(self, now: Scenario) -> bool:
        """Within the profile's share of memory, or no more than what runs already and fits."""
        within = self.fit(self.goal.memory_share)
        if within is None or within:
            return True
        if self.need is None or now.need is None or now.overflows:
            return False
        smaller = self.need.total_bytes <= now.need.total_bytes and self.need.shared_bytes <= now.need.shared_bytes
        return smaller and not self.overflows
