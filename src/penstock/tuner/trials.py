"""The runs of one tuning within its time: which settings were run, their rates, and which failed."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.dataloader import DataLoader as PenstockDataLoader
from penstock.plan.worker_count import WorkerDemand
from penstock.tuner.loader_copy import HAS_IN_ORDER, IndexOrder, copy_dataset, copy_loader, is_iterable
from penstock.tuner.measure import SameSeed, StepFailed, measure_rate, workers_repeat_samples
from penstock.tuner.result import MeasuredSetting, WorkerSettings
from penstock.tuner.worker_cost import WorkerCost, measure_worker_cost
from penstock.watcher.loader_views import length_of

log = logging.getLogger("penstock")

WORKER_COST_SHARE = 0.1
"""Share of the time for the measurement of one worker."""
RUNS = 60
"""A run is timed for 1/RUNS of the time: a dozen runs fit, with their starts and warm-ups."""
MIN_TIMEOUT_S = 1.0


@dataclass(slots=True)
class SettingRuns:
    """All runs of one combination of settings."""

    batches_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    predicted_batches_s: float | None = None
    computed: bool = False
    """Whether the rate was computed from the cost of one worker instead of measured."""
    remark: str = ""
    """Why a run failed, or why its rate is uncertain."""

    @property
    def rate(self) -> float | None:
        """The median of the batches per second; None where every run failed."""
        return float(np.median(self.batches_s)) if self.batches_s else None


class SettingTrials:
    """Runs settings of a loader like the template until the time is over."""

    def __init__(
        self,
        template: DataLoader[Any],
        step: Callable[[Any], object],
        seconds: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.template = template
        self.rows: dict[WorkerSettings, SettingRuns] = {}
        self.swapped_batches_s: list[float] = []
        """Batches per second of the runs of penstock.DataLoader in the place of torch's."""
        self.stopped = ""
        """The reason why nothing more can be run; empty as long as runs are possible."""
        self.forecast: Callable[[WorkerSettings], float] = lambda _setting: inf
        """Predicted batches per second, once the worker cost is known."""
        self.order = None if is_iterable(template) else IndexOrder(template)
        self._step = step
        self._clock = clock
        self._start_s = clock.now()
        self._seconds = seconds
        self._copy: Any = None

    # -- time ------------------------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock.now() - self._start_s

    def deadline_s(self, share: float = 0.95) -> float:
        """Return the time on the clock at which this share of the time is over."""
        return self._start_s + share * self._seconds

    def has_time_for(self, setting: WorkerSettings, share: float) -> bool:
        """Return whether a run would end before this share of the time is over: start, warm-up and two windows."""
        workers = max(1, setting.workers)
        start_s = max((s for row in self.rows.values() for s in row.first_s), default=0.0)
        warm_up_s = workers * (setting.prefetch + 2) / max(self.forecast(setting), 1e-9)
        return self._clock.now() + start_s + max(warm_up_s, self._seconds / RUNS) <= self.deadline_s(share)

    # -- runs ------------------------------------------------------------------------------------------------------

    def measure_worker_cost(self) -> WorkerCost:
        """Measure one worker."""
        with suppress_torch_warnings():
            return measure_worker_cost(
                self.loader(WorkerSettings(1), DataLoader),
                seconds=WORKER_COST_SHARE * self._seconds,
                until_s=self.deadline_s(0.5),
            )

    def worker_demand(self, cost: WorkerCost) -> WorkerDemand:
        """Return what each worker takes, and how many workers the data can be divided between."""
        reason = self._why_one_worker() if is_iterable(self.template) else ""
        return WorkerDemand(
            batch_bytes=cost.batch_bytes,
            worker_bytes=cost.worker_bytes,
            pinned=bool(self.template.pin_memory),
            computing_share=cost.computing_share,
            epoch_batches=None if is_iterable(self.template) else length_of(self.template),
            dataset_workers=1 if reason else None,
            dataset_reason=reason,
        )

    def _why_one_worker(self) -> str:
        """Return why an iterable dataset must not have more than one worker; empty if it divides its samples."""
        init_fn = SameSeed(self.template.worker_init_fn)
        try:
            with suppress_torch_warnings():
                repeats = workers_repeat_samples(self.loader(WorkerSettings(2, 1), DataLoader, worker_init_fn=init_fn))
        except Exception as error:
            return f"Two workers could not be tried: {error_line(error)}"
        return "The dataset gives every worker the same samples: more than one would repeat them all" if repeats else ""

    def run(self, setting: WorkerSettings) -> None:
        """Run the settings once. A failure is noted and other settings may still work, unless the step raised."""
        row = self.row(setting)
        try:
            with suppress_torch_warnings():
                found = measure_rate(
                    self.loader(setting),
                    self._step,
                    seconds=self._seconds / RUNS,
                    until_s=self.deadline_s(),
                    clock=self._clock,
                )
        except StepFailed as error:
            self.stopped = f"step raised {error_line(error.__cause__)}"
            row.remark = self.stopped
        except Exception as error:
            row.remark = error_line(error)
        else:
            row.batches_s.append(found.batches_s)
            row.first_s.append(found.first_s)
            row.remark = "the data ended before delivery had become periodic" if found.short else row.remark

    def run_swapped(self, setting: WorkerSettings) -> None:
        """Run penstock.DataLoader with these settings once, if it would make the batches by its own workers."""
        try:
            with suppress_torch_warnings():
                loader = self.loader(setting, PenstockDataLoader)
                if not loader.runs_on_engine or not self.has_time_for(setting, 1.0):  # type: ignore[attr-defined]
                    return
                found = measure_rate(
                    loader, self._step, seconds=self._seconds / RUNS, until_s=self.deadline_s(1.0), clock=self._clock
                )
        except Exception as error:
            log.info("penstock.DataLoader could not be run: %s", error_line(error))
        else:
            self.swapped_batches_s.append(found.batches_s)

    def run_inline(self, share: float) -> None:
        """Run without workers on a copy of the dataset; compute the rate if there is no copy or no time."""
        self._copy = copy_dataset(self.template.dataset) if self._copy is None else self._copy
        if self._copy is not None and self.has_time_for(WorkerSettings(), share):
            self.run(WorkerSettings())
            return
        row = self.row(WorkerSettings())
        row.batches_s, row.computed = [self.forecast(WorkerSettings())], True

    def row(self, setting: WorkerSettings) -> SettingRuns:
        """Return the runs of the settings; a new row has the model's prediction."""
        if setting not in self.rows:
            self.rows[setting] = SettingRuns(predicted_batches_s=self.forecast(setting))
        return self.rows[setting]

    def loader(
        self, setting: WorkerSettings, kind: type[DataLoader[Any]] | None = None, **arguments: Any
    ) -> DataLoader[Any]:
        """Return a loader like the template with its own random generator and a timeout within the remaining time."""
        changes = {**setting.kwargs(), "persistent_workers": False, "generator": torch.Generator(), **arguments}
        if HAS_IN_ORDER:
            changes["in_order"] = bool(setting.in_order and self.template.in_order)
        left_s = max(MIN_TIMEOUT_S, self.deadline_s(1.0) - self._clock.now())
        changes["timeout"] = min(left_s, self.template.timeout or left_s)
        if not setting.workers and self._copy is not None:
            changes["dataset"] = self._copy
        return copy_loader(self.template, changes, order=self.order, kind=kind)

    # -- results ---------------------------------------------------------------------------------------------------

    @property
    def samples_per_batch(self) -> float:
        """Mean samples per batch; 1 for a dataset that makes its own batches, whose items are counted."""
        if self.order is not None:
            return self.order.samples_per_batch
        return float(self.template.batch_size or 1)

    def rates(self) -> dict[WorkerSettings, float]:
        """Return the batches per second of all settings that have a rate."""
        return {setting: row.rate for setting, row in self.rows.items() if row.rate is not None}

    @property
    def any_measured(self) -> bool:
        """Whether at least one combination of settings was run, and not only computed."""
        return any(row.batches_s and not row.computed for row in self.rows.values())

    def measured(self, notes: dict[WorkerSettings, str]) -> tuple[MeasuredSetting, ...]:
        """Return the results in samples per second, sorted by cost."""
        return tuple(self._measured(setting, notes) for setting in sorted(self.rows, key=WorkerSettings.cost))

    def _measured(self, setting: WorkerSettings, notes: dict[WorkerSettings, str]) -> MeasuredSetting:
        row, per_batch = self.rows[setting], self.samples_per_batch
        predicted = row.predicted_batches_s
        return MeasuredSetting(
            setting=setting,
            how="failed" if row.rate is None else "computed" if row.computed else "measured",
            samples_s=None if row.rate is None else row.rate * per_batch,
            runs=0 if row.computed else len(row.batches_s),
            first_s=float(np.median(row.first_s)) if row.first_s else None,
            predicted_samples_s=None if predicted is None else predicted * per_batch,
            note="; ".join(text for text in (notes.get(setting, ""), row.remark) if text),
        )


@contextmanager
def suppress_torch_warnings() -> Iterator[None]:
    """Suppress warnings about more workers than cores, which are tried on purpose, and about errors raised anyway."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warnings.filterwarnings("ignore", "Got pickle error")
        yield


def error_line(error: BaseException | None) -> str:
    """Return the type and the last line of an error: torch puts the traceback of the worker before it."""
    lines = str(error).strip().splitlines()
    last = lines[-1].strip() if lines else ""
    name = type(error).__name__
    if not last:
        return name
    return last if last.startswith(f"{name}:") else f"{name}: {last}"
