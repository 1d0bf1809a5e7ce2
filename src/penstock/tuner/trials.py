"""The runs of one tuning, within its time: what was run, how fast it was, and what failed."""

from __future__ import annotations

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
from penstock.tuner.loader_copy import HAS_IN_ORDER, IndexOrder, copy_dataset, is_iterable, like
from penstock.tuner.measure import SameSeed, StepFailed, measure_rate, repeats_itself
from penstock.tuner.result import MeasuredSetting, Setting
from penstock.tuner.worker_cost import WorkerCost, measure_worker_cost

SHARE_OF_SERVICE = 0.1
"""Of the time, for one worker alone."""
RUNS = 60
"""A run is timed for such a part of the time: a dozen runs, their starts and their warm-up fit in."""
LEAST_TIMEOUT_S = 1.0


@dataclass(slots=True)
class SettingRuns:
    """One setting's runs."""

    batches_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    predicted_batches_s: float | None = None
    computed: bool = False
    remark: str = ""
    """Why a run failed, or what is wrong with it."""

    @property
    def rate(self) -> float | None:
        """Batches per second at the median; None where no run came to anything."""
        return float(np.median(self.batches_s)) if self.batches_s else None


class SettingTrials:
    """Runs settings of a loader like the pattern, on a clock that runs out."""

    def __init__(
        self,
        pattern: DataLoader[Any],
        step: Callable[[Any], object],
        seconds: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.pattern = pattern
        self.rows: dict[Setting, SettingRuns] = {}
        self.stopped = ""
        """Why nothing more can be run, if so."""
        self.expects: Callable[[Setting], float] = lambda _setting: inf
        """Batches per second, by the model, once there is one."""
        self.order = None if is_iterable(pattern) else IndexOrder(pattern)
        self._step = step
        self._clock = clock
        self._began = clock.now()
        self._seconds = seconds
        self._copy: Any = None

    # -- time ----------------------------------------------------------------------------------------------------

    @property
    def passed_s(self) -> float:
        """Since it began."""
        return self._clock.now() - self._began

    def until_s(self, share: float = 0.95) -> float:
        """When so much of the time is over, on the clock."""
        return self._began + share * self._seconds

    def fits(self, setting: Setting, share: float) -> bool:
        """Whether a run of it would be over by then: its start, its warm-up and two windows, as the model has it."""
        workers = max(1, setting.workers)
        start_s = max((s for row in self.rows.values() for s in row.first_s), default=0.0)
        warm_s = workers * (setting.prefetch + 2) / max(self.expects(setting), 1e-9)
        return self._clock.now() + start_s + max(warm_s, self._seconds / RUNS) <= self.until_s(share)

    # -- runs ----------------------------------------------------------------------------------------------------

    def measure_worker_cost(self) -> WorkerCost:
        """One worker, and what it does."""
        with quiet():
            return measure_worker_cost(
                self.loader(Setting(1)), seconds=SHARE_OF_SERVICE * self._seconds, until_s=self.until_s(0.5)
            )

    def not_dealt(self) -> str:
        """Why an iterable dataset must not have more than one worker; empty where it deals its samples out to them."""
        same_dice = SameSeed(self.pattern.worker_init_fn)
        try:
            with quiet():
                repeats = repeats_itself(self.loader(Setting(2, 1), worker_init_fn=same_dice))
        except Exception as error:
            return f"Two workers could not be tried: {one_line(error)}"
        return "The dataset gives every worker the same samples: more than one would repeat them all" if repeats else ""

    def run(self, setting: Setting) -> None:
        """Once. What fails is noted, and the next may still work; but a step that raises will raise again."""
        row = self.row(setting)
        try:
            with quiet():
                found = measure_rate(
                    self.loader(setting),
                    self._step,
                    seconds=self._seconds / RUNS,
                    until_s=self.until_s(),
                    clock=self._clock,
                )
        except StepFailed as error:
            self.stopped = f"step raised {one_line(error.__cause__)}"
            row.remark = self.stopped
        except Exception as error:
            row.remark = one_line(error)
        else:
            row.batches_s.append(found.batches_s)
            row.first_s.append(found.first_s)
            row.remark = "the data was over before delivery had found its rhythm" if found.short else row.remark

    def run_inline(self, share: float) -> None:
        """No workers, on a copy of the dataset. Where there can be none, or no time, by what one worker took."""
        self._copy = copy_dataset(self.pattern.dataset) if self._copy is None else self._copy
        if self._copy is not None and self.fits(Setting(), share):
            self.run(Setting())
            return
        row = self.row(Setting())
        row.batches_s, row.computed = [self.expects(Setting())], True

    def row(self, setting: Setting) -> SettingRuns:
        """Its row, made with the model's word on it."""
        if setting not in self.rows:
            self.rows[setting] = SettingRuns(predicted_batches_s=self.expects(setting))
        return self.rows[setting]

    def loader(self, setting: Setting, **own: Any) -> DataLoader[Any]:
        """Like the pattern; its dice are its own, and it does not wait longer than there is time."""
        changes = {**setting.kwargs(), "persistent_workers": False, "generator": torch.Generator(), **own}
        if HAS_IN_ORDER:
            changes["in_order"] = bool(setting.in_order and self.pattern.in_order)
        left_s = max(LEAST_TIMEOUT_S, self.until_s(1.0) - self._clock.now())
        changes["timeout"] = min(left_s, self.pattern.timeout or left_s)
        if not setting.workers and self._copy is not None:
            changes["dataset"] = self._copy
        return like(self.pattern, changes, order=self.order)

    # -- what came of it -------------------------------------------------------------------------------------------

    @property
    def samples_per_batch(self) -> float:
        """On average. Of a dataset that makes its own batches, one: its items are counted."""
        if self.order is not None:
            return self.order.samples_per_batch
        return float(self.pattern.batch_size or 1)

    def rates(self) -> dict[Setting, float]:
        """Batches per second, of all that came to something."""
        return {setting: row.rate for setting, row in self.rows.items() if row.rate is not None}

    @property
    def any_measured(self) -> bool:
        """Whether one setting at least was run, and not only computed."""
        return any(row.batches_s and not row.computed for row in self.rows.values())

    def measured(self, notes: dict[Setting, str]) -> tuple[MeasuredSetting, ...]:
        """For the user, in samples, fewest workers first."""
        return tuple(self._measured(setting, notes) for setting in sorted(self.rows, key=Setting.cost))

    def _measured(self, setting: Setting, notes: dict[Setting, str]) -> MeasuredSetting:
        row, each = self.rows[setting], self.samples_per_batch
        predicted = row.predicted_batches_s
        return MeasuredSetting(
            setting=setting,
            how="failed" if row.rate is None else "computed" if row.computed else "measured",
            samples_s=None if row.rate is None else row.rate * each,
            runs=0 if row.computed else len(row.batches_s),
            first_s=float(np.median(row.first_s)) if row.first_s else None,
            predicted_samples_s=None if predicted is None else predicted * each,
            note="; ".join(word for word in (notes.get(setting, ""), row.remark) if word),
        )


@contextmanager
def quiet() -> Iterator[None]:
    """torch warns of more workers than cores, which is what is being tried, and of what it then raises anyway."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warnings.filterwarnings("ignore", "Got pickle error")
        yield


def one_line(error: BaseException | None) -> str:
    """An error's type and the last line of what it says: torch puts the worker's traceback before it."""
    lines = str(error).strip().splitlines()
    last = lines[-1].strip() if lines else ""
    name = type(error).__name__
    if not last:
        return name
    return last if last.startswith(f"{name}:") else f"{name}: {last}"
