"""Scenarios: one training with one torch DataLoader, as it was observed or with other settings.

A proposal starts from the scenario of now and compares it with others. Each scenario has a predicted rate (by the
model) and a memory need, so two of them can be compared and one can be refused for lack of memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isinf
from typing import Any, Self

from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.diagnose.suspect import Remedy
from penstock.model.workload import Workload
from penstock.plan.memory import MemoryFit, MemoryNeed, fits
from penstock.plan.predict import Prediction, computing_share, predict
from penstock.plan.profiles import ProfileGoal
from penstock.plan.worker_count import WorkerDemand, WorkerLimit, WorkerResources, memory_need, worker_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """The settings of a torch DataLoader that a plan can change."""

    num_workers: int
    prefetch_factor: int = TORCH_PREFETCH_FACTOR
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True
    multiprocessing_context: str | None = None
    """fork, forkserver or spawn; None: the default of the system."""


@dataclass(frozen=True, slots=True)
class WorkerStartCost:
    """The time that starting workers takes.

    Torch starts workers one after the other before the first batch. `spawn` (macOS, Windows) starts an interpreter,
    runs every import of the script and unpickles a copy of the dataset in each; `fork` (Linux) copies page tables. So
    the cost is workers × `per_worker_s` in both cases, and only the measured value differs between platforms.
    """

    per_worker_s: float

    @classmethod
    def measured(cls, first_wait_s: float, usual_wait_s: float, batch_s: float, workers: int) -> WorkerStartCost:
        """Derive the cost from the first wait of an epoch, less a usual wait and the time to make one batch."""
        return cls(max(0.0, first_wait_s - usual_wait_s - batch_s) / workers if workers > 0 else 0.0)

    def seconds(self, workers: int) -> float:
        """Return the seconds before the first batch of an epoch."""
        return workers * self.per_worker_s


NO_START_COST = WorkerStartCost(0.0)


def rate_with_start(batches_s: float, start_s: float, batches: int | None) -> float:
    """Return the rate over an epoch of so many batches that begins with a start of `start_s` seconds.

    The rate is returned unchanged where the length of the epoch is not known.
    """
    if not batches or start_s <= 0:
        return batches_s
    return batches / (batches / batches_s + start_s)


def spawns_by_default(platform: str) -> bool:
    """Return whether workers are new interpreters by default; `platform` begins with the name of the system."""
    return platform.startswith(("Windows", "Darwin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingContext:
    """The facts about the machine and the training that the settings of the loader do not change."""

    platform: str = ""
    """Begins with the name of the system."""
    gpus: int = 0
    has_in_order: bool = True
    """Whether the installed torch has the setting `in_order` (2.6 and later)."""
    free_bytes: int | None = None
    """Memory that the loader may take, including what it already holds; None: memory cannot be checked."""
    shared_free_bytes: int | None = None
    batch_bytes: int | None = None
    worker_bytes: int | None = None
    """Private memory of one worker; None: measured on the process that plans."""
    worker_start: WorkerStartCost = NO_START_COST
    epoch_batches: int | None = None
    epochs: int = 2
    """Epochs of a run, over which the first start of persistent workers is spread."""
    dataset_workers: int | None = None
    """Workers between which the dataset divides its samples, if that is a limit: iterable datasets divide shards."""
    copy_s: float = 0.0
    """Seconds of a step in copies to the device from memory that is not pinned."""
    device_s: float = 0.0
    """Seconds of a step on the device's own clock without copies: a lower bound for the step with faster copies."""
    threads_per_worker: float = 1.0
    """Cores' worth of threads that run in one worker."""
    single_thread_remedy: Remedy | None = None
    """Edits the workload to one thread per worker; None where threads do not slow the run."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario:
    """A workload with settings in a context, and the rate and the memory that follow from them."""

    workload: Workload
    settings: LoaderSettings
    context: TrainingContext
    goal: ProfileGoal
    samples_per_batch: float = 1.0
    measured_batches_s: float = 0.0
    """Measured rate of this very scenario between worker starts: a lower prediction is replaced by it; 0: not run."""
    inherited_correction: float | None = None
    """Measured rate over predicted rate of the scenario that this one was derived from; None: it was not derived."""

    def with_settings(self, **changes: Any) -> Self:
        """Return the scenario with these settings changed."""
        names = {"num_workers": "workers", "prefetch_factor": "prefetch", "in_order": "in_order"}
        edits = {names[name]: value for name, value in changes.items() if name in names}
        settings = replace(self.settings, **changes)
        if not edits:
            return replace(self, settings=settings)
        return self._with_workload(self.workload.replace(**edits), settings)

    def with_remedy(self, remedy: Remedy) -> Self:
        """Return the scenario with the workload edited and the same settings."""
        return self._with_workload(remedy(self.workload), self.settings)

    def _with_workload(self, workload: Workload, settings: LoaderSettings) -> Self:
        return replace(
            self, settings=settings, workload=workload, measured_batches_s=0.0, inherited_correction=self._correction
        )

    @cached_property
    def _correction(self) -> float:
        """Measured over predicted rate, 1 at least: the model may be too slow for a run, and then for its variants."""
        if self.inherited_correction is not None:
            return self.inherited_correction
        predicted = self.prediction.batches_s
        return max(1.0, self.measured_batches_s / predicted) if 0 < predicted < inf else 1.0

    @cached_property
    def prediction(self) -> Prediction:
        """The model's prediction between worker starts."""
        return predict(self.workload, self.samples_per_batch)

    @cached_property
    def batches_s(self) -> float:
        """Batches per second over a whole epoch; workers that do not persist are started for each epoch."""
        context = self.context
        starts_per_epoch = 1 / max(1, context.epochs) if self.settings.persistent_workers else 1.0
        start_s = context.worker_start.seconds(self.settings.num_workers) * starts_per_epoch
        return rate_with_start(max(self._steady_batches_s, self.measured_batches_s), start_s, context.epoch_batches)

    @property
    def _steady_batches_s(self) -> float:
        """The prediction with the correction of the measured run, but never above the lowest bound."""
        predicted, bounds = self.prediction.batches_s, self.prediction.bounds
        return max(predicted, min(predicted * self._correction, bounds[0].rate)) if bounds else predicted

    @property
    def startup_factor(self) -> float:
        """The rate with worker starts as a share of the rate between them."""
        between = max(self.prediction.batches_s, self.measured_batches_s)
        return self.batches_s / between if 0 < between < inf else 1.0

    @property
    def samples_s(self) -> float:
        """Samples per second over a whole epoch."""
        return self.batches_s * self.samples_per_batch

    def gain_over(self, other: Scenario) -> float:
        """Return the relative increase in samples per second; 0.5 means 1.5 times the rate of the other."""
        return 0.0 if isinf(other.batches_s) else self.batches_s / other.batches_s - 1

    # -- memory and workers ------------------------------------------------------------------------------------------

    @property
    def worker_demand(self) -> WorkerDemand:
        """The resources that each worker takes, for the limit on their number."""
        return WorkerDemand(
            prefetch=self.settings.prefetch_factor,
            batch_bytes=self.context.batch_bytes,
            worker_bytes=self.context.worker_bytes,
            pinned=self.settings.pin_memory,
            computing_share=computing_share(self.workload),
            epoch_batches=self.context.epoch_batches,
            dataset_workers=self.context.dataset_workers,
        )

    @property
    def worker_limit(self) -> WorkerLimit:
        """The limit on the number of workers that the machine, the memory of the profile and the dataset set."""
        resources = WorkerResources(
            cores=self.workload.cores,
            free_bytes=self.context.free_bytes,
            shared_free_bytes=self.context.shared_free_bytes,
        )
        return worker_limit(resources, self.worker_demand, memory_share=self.goal.memory_share)

    @cached_property
    def need(self) -> MemoryNeed | None:
        """The memory need; None where the size of a batch is not known."""
        return memory_need(self.worker_demand, self.settings.num_workers)

    def fit(self, share: float = 1.0) -> MemoryFit | None:
        """Return whether the need fits into a share of the free memory; None where one of the two is not known."""
        if self.need is None or self.context.free_bytes is None:
            return None
        return fits(self.need, self.context.free_bytes, shared_free=self.context.shared_free_bytes, share=share)

    @property
    def overflows(self) -> bool:
        """Whether the need is known not to fit into the free memory."""
        fit = self.fit()
        return fit is not None and not fit

    def allowed(self, now: Scenario) -> bool:
        """Return whether this fits the profile's share of memory, or needs no more than `now`, which runs and fits."""
        within = self.fit(self.goal.memory_share)
        if within is None or within:
            return True
        if self.need is None or now.need is None or now.overflows:
            return False
        smaller = self.need.total_bytes <= now.need.total_bytes and self.need.shared_bytes <= now.need.shared_bytes
        return smaller and not self.overflows
