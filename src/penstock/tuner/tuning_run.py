"""One tuning: the model first, then a few measurements.

One worker is timed alone: the computing and the waiting that a batch takes it, and the time of the main process to
receive the batch. From that the model predicts how many workers are enough. Around that number real loaders are run
for a short time each, until the best number lies between two others. Of the settings as good as the best, those with
the fewest workers are chosen, after they were run again in turns with the best and with torch's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from penstock.core.clock import SYSTEM_CLOCK
from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.errors import PenstockError, SettingError
from penstock.model.bounds import bounds
from penstock.model.workload import Workload
from penstock.plan.profiles import ProfileGoal
from penstock.plan.worker_count import WorkerDemand, WorkerLimit, WorkerResources, worker_limit
from penstock.tuner.explain import TuningFacts, explain, explain_failure
from penstock.tuner.loader_copy import HAS_IN_ORDER, is_iterable, loader_kind
from penstock.tuner.measure import Step, StepCost, StepFailed, time_step
from penstock.tuner.result import TuningFindings, WorkerSettings
from penstock.tuner.search import (
    choose,
    forecast_rate,
    forecast_workload,
    model_guess,
    next_workers,
    rates_by_workers,
    variants,
)
from penstock.tuner.trials import SettingTrials, error_line
from penstock.tuner.worker_cost import FetchFailed, WorkerCost, WorkerStartFailed
from penstock.watcher.loader_views import length_of

ROUNDS = 3
"""Runs of each of the settings between which the choice is made."""
INLINE, SEARCH, VARIANTS, REPEATS = 0.4, 0.65, 0.8, 0.95
"""Shares of the time at which each stage must end: the run without workers, the search, the variants, the repeats."""
SWAPPED_RUNS = 2
"""Runs of penstock.DataLoader in the place of torch's."""
MIN_SWAP_GAIN = 0.05
"""Gain from which on it is proposed: less may be chance."""
SHORT_EPOCH = 0.02
"""Share of an epoch that starting the workers takes from which on they should persist for the next epoch."""


@dataclass(frozen=True, kw_only=True)
class TuningRequest:
    """The step of the training and the goal for which a loader is tuned, and the time for it."""

    step: Step | None
    step_s: float | None
    goal: ProfileGoal
    seconds: float

    @property
    def step_known(self) -> bool:
        """Whether loading is measured beside a step."""
        return self.step is not None or self.step_s is not None

    def run_step(self, batch: Any) -> None:
        """Do with a batch what the training loop does."""
        if self.step is not None:
            self.step(batch)
        elif self.step_s:
            SYSTEM_CLOCK.sleep(self.step_s)  # the device computes, and the host waits for it


@dataclass(frozen=True, kw_only=True)
class TuningCosts:
    """The measured costs of a loader, and what the model and the machine make of them."""

    worker: WorkerCost
    step: StepCost
    workload: Workload
    demand: WorkerDemand
    limit: WorkerLimit


class TuningRun:
    """A tuning of one loader, from the measurement of one worker to the result."""

    def __init__(self, template: DataLoader[Any], request: TuningRequest, *, is_given: bool) -> None:
        """`is_given` says that the template is the user's own loader, whose settings are measured too."""
        self._template = template
        self._request = request
        self._goal = request.goal
        self._given = _settings_of(template) if is_given else None
        self._trials = SettingTrials(template, request.run_step, request.seconds)

    @property
    def samples_per_batch(self) -> float:
        """Mean samples per batch of all that was run."""
        return self._trials.samples_per_batch

    def run(self) -> TuningFindings:
        """Run the whole tuning; a part that cannot be measured is reported in the reasons."""
        costs = self.measure_costs()
        guess = model_guess(costs.workload, costs.limit.workers, self._goal.rate_tolerance)
        self._trials.forecast = partial(forecast_rate, costs.workload, costs.worker)
        in_time = self._search(guess, costs.limit)
        self._try_variants(costs.workload)
        self._repeat(guess)
        self._try_swap()
        return self._findings(costs, guess, in_time)

    # -- costs -----------------------------------------------------------------------------------------------------

    def measure_costs(self) -> TuningCosts:
        """Measure one worker and the step, and derive the workload and the limit on workers."""
        worker = self._worker_cost()
        step = self._step_cost(worker)
        demand = self._trials.worker_demand(worker)
        limit = worker_limit(WorkerResources.of_this_rank(), demand, memory_share=self._goal.memory_share)
        return TuningCosts(
            worker=worker,
            step=step,
            workload=forecast_workload(self._template, worker, step),
            demand=demand,
            limit=limit,
        )

    def _worker_cost(self) -> WorkerCost:
        try:
            return self._trials.measure_worker_cost()
        except (WorkerStartFailed, FetchFailed) as error:
            raise explain_failure(error, self._trials) from error.__cause__

    def _step_cost(self, worker: WorkerCost) -> StepCost:
        if self._request.step is None:
            return StepCost(self._request.step_s or 0.0)
        try:
            return time_step(self._request.step, worker.last, until_s=self._trials.deadline_s(INLINE))
        except StepFailed as error:
            raise SettingError(
                f"step raised {error_line(error.__cause__)}",
                stage="step",
                advice="It is called with one batch, as the loader delivers it",
            ) from error.__cause__

    # -- runs ------------------------------------------------------------------------------------------------------

    def _search(self, guess: int, limit: WorkerLimit) -> bool:
        """Search for the number of workers; return False if the time ended before it was found."""
        trials, most = self._trials, max(1, limit.workers)
        trials.run_inline(INLINE)
        given, runnable = self._given, max(1, limit.runnable)
        if given is not None and given not in trials.rows and given.workers <= runnable and not trials.stopped:
            trials.run(given)
        while not trials.stopped:
            rates = {**dict.fromkeys(trials.rows, 0.0), **trials.rates()}
            workers = next_workers(rates_by_workers(rates), guess, most, self._goal.rate_tolerance)
            if workers is None:
                return True
            is_first = not any(setting.workers for setting in trials.rates())
            if not trials.has_time_for(WorkerSettings(workers), REPEATS if is_first else SEARCH):
                return False
            trials.run(WorkerSettings(workers))
        return False

    def _try_variants(self, workload: Workload) -> None:
        """Run a deeper prefetch or out-of-order delivery where the simulation says that batches are uneven enough."""
        trials = self._trials
        if not trials.rates():
            return
        deeper = self._goal.max_prefetch > TORCH_PREFETCH_FACTOR
        out_of_order = HAS_IN_ORDER and bool(self._template.in_order)
        for setting in variants(workload, self._choice(), deeper=deeper, out_of_order=out_of_order):
            if not trials.stopped and setting not in trials.rows and trials.has_time_for(setting, VARIANTS):
                trials.run(setting)

    def _repeat(self, guess: int) -> None:
        """Run the candidates again in turns, beginning with another one in each round."""
        trials = self._trials
        for number in range(1, ROUNDS):
            if not trials.rates():
                return
            order = sorted(self._candidates(guess), key=WorkerSettings.cost)
            for setting in order[number % len(order) :] + order[: number % len(order)]:
                if trials.stopped or trials.rows[setting].computed or not trials.has_time_for(setting, REPEATS):
                    continue
                trials.run(setting)

    def _try_swap(self) -> None:
        """Run penstock.DataLoader with the settings that are chosen, in turns with torch's."""
        trials = self._trials
        if not trials.rates() or loader_kind(self._template) is not DataLoader:
            return
        choice = self._choice()
        for number in range(SWAPPED_RUNS if choice.workers else 0):
            if trials.stopped:
                return
            trials.run_swapped(choice)
            if number and trials.has_time_for(choice, 1.0):
                trials.run(choice)

    def _swap_note(self, chosen: WorkerSettings, batches_s: float) -> str:
        """Propose penstock.DataLoader if it was faster; empty if it was not, or not run."""
        swapped = self._trials.swapped_batches_s
        if not swapped or (gain := float(np.median(swapped)) / batches_s - 1) < MIN_SWAP_GAIN:
            return ""
        rate = float(np.median(swapped)) * self._trials.samples_per_batch
        return (
            f"penstock.DataLoader in the place of torch's, with {chosen}: {rate:,.0f} samples/s, {gain:+.0%}. The "
            "change is `from penstock import DataLoader`"
        )

    def _candidates(self, guess: int) -> set[WorkerSettings]:
        """Return torch's default, the choice, the best, and two that one unlucky run may have excluded.

        Those two are the model's guess, and the settings with the next fewer workers than the choice.
        """
        rates, choice = self._trials.rates(), self._choice()
        fewer = max(
            (each for each in rates if 0 < each.workers < choice.workers), key=WorkerSettings.cost, default=choice
        )
        best = max(rates, key=lambda setting: rates[setting])
        return {WorkerSettings(), choice, best, fewer, WorkerSettings(guess)} & rates.keys()

    def _choice(self) -> WorkerSettings:
        return choose(self._trials.rates(), self._goal.rate_tolerance, step_known=self._request.step_known)

    # -- the result ------------------------------------------------------------------------------------------------

    def _findings(self, costs: TuningCosts, guess: int, in_time: bool) -> TuningFindings:
        trials = self._trials
        rates = trials.rates()
        if not rates or (trials.stopped and not trials.any_measured):
            failures = "; ".join(f"{setting}: {row.remark}" for setting, row in trials.rows.items() if row.remark)
            raise PenstockError(f"no setting could be measured: {failures}", stage="measure")
        chosen = self._choice()
        samples_s = {setting: rate * trials.samples_per_batch for setting, rate in rates.items()}
        kwargs = chosen.kwargs()
        why_persistent = self._why_persistent(chosen, rates[chosen])
        if why_persistent:
            kwargs["persistent_workers"] = True
        swap_note = self._swap_note(chosen, rates[chosen])
        notes = (costs.limit.note, why_persistent, swap_note, self._subclass_note(), self._end_note(in_time))
        facts = TuningFacts(
            worker=costs.worker,
            step=costs.step,
            step_known=self._request.step_known,
            cores=costs.workload.cores,
            guess=guess,
            bound=_lowest_bound(costs.workload, guess),
            chosen=chosen,
            rate_tolerance=self._goal.rate_tolerance,
            samples_s=samples_s,
            notes=tuple(note for note in notes if note),
        )
        return TuningFindings(
            kwargs=kwargs,
            samples_s=samples_s[chosen],
            default_samples_s=samples_s.get(WorkerSettings()),
            measured=trials.measured(self._setting_notes()),
            reasons=explain(facts),
            seconds=trials.elapsed_s,
            complete=trials.any_measured and not trials.stopped,
            swapped_samples_s=(
                float(np.median(trials.swapped_batches_s)) * trials.samples_per_batch
                if trials.swapped_batches_s
                else None
            ),
        )

    def _setting_notes(self) -> dict[WorkerSettings, str]:
        notes = {WorkerSettings(): "torch's default"}
        if self._given is not None:
            notes[self._given] = "as given" if self._given.workers else "torch's default, as given"
        return notes

    def _why_persistent(self, chosen: WorkerSettings, batches_s: float) -> str:
        """Return why workers should persist between epochs; empty where they should not, or already do."""
        dataset = self._template.dataset
        batches = None if is_iterable(self._template) else length_of(self._template)
        starts_s = self._trials.rows[chosen].first_s
        if not chosen.workers or not starts_s or not batches or self._template.persistent_workers:
            return ""
        start_s, epoch_s = float(np.median(starts_s)), batches / batches_s
        if start_s < SHORT_EPOCH * epoch_s or hasattr(dataset, "set_epoch"):
            return ""
        return (
            f"persistent_workers: starting takes {start_s:.1f} s and an epoch {epoch_s:.1f} s. "
            "Workers keep their copy of the dataset: they do not see changes made to it between epochs"
        )

    def _subclass_note(self) -> str:
        kind = type(self._template)
        if kind is loader_kind(self._template):
            return ""
        return f"{kind.__qualname__} is a subclass of DataLoader: loader() gives torch's own; give kwargs to yours"

    def _end_note(self, in_time: bool) -> str:
        if self._trials.stopped:
            return f"Ended early: {self._trials.stopped}. The measurements before that are valid"
        return "" if in_time else "The time ended before every number of workers near the best was tried"


def _settings_of(template: DataLoader[Any]) -> WorkerSettings:
    if not template.num_workers:
        return WorkerSettings()
    return WorkerSettings(template.num_workers, template.prefetch_factor or TORCH_PREFETCH_FACTOR)


def _lowest_bound(workload: Workload, workers: int) -> str:
    return next((bound.name for bound in bounds(workload.replace(workers=workers).demands())), "nothing")
