"""One tuning: model first, then a few measurements.

One worker is timed alone: what a batch costs it, computing and waiting, and what taking it costs the main process. From
that the model says how many workers should be enough. Around that number real loaders are run, briefly, until the best
is between two others. Of those as good as the best the one with the fewest workers is taken, after it was run again in
turn with the best and with torch's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from penstock.core.clock import SYSTEM_CLOCK
from penstock.errors import PenstockError, SettingError
from penstock.model.bounds import bounds
from penstock.model.workload import Workload
from penstock.plan.profiles import ProfileGoal
from penstock.tuner.explain import TuningFacts, explain, explain_failure
from penstock.tuner.loader_copy import HAS_IN_ORDER, is_iterable
from penstock.tuner.measure import Step, StepCost, StepFailed, time_step
from penstock.tuner.result import PREFETCH, Setting, TuningFindings
from penstock.tuner.search import (
    WorkerLimit,
    choose,
    expected,
    model_guess,
    next_workers,
    plain,
    variants,
    worker_limit,
    workload_of,
)
from penstock.tuner.trials import SettingTrials, one_line
from penstock.tuner.worker_cost import FetchFailed, StartFailed, WorkerCost
from penstock.watcher.loader_views import length_of

ROUNDS = 3
"""Runs of the settings that the choice is between."""
INLINE, SEARCH, VARIANTS, AGAIN = 0.4, 0.65, 0.8, 0.95
"""Parts of the time by which each must be over: no workers, the search, deeper or out of order, and the last rounds."""
SHORT_EPOCH = 0.02
"""Starting workers takes more than such a part of an epoch: then they should stay for the next one."""


@dataclass(frozen=True, kw_only=True)
class TuningQuestion:
    """What the user wants to know."""

    step: Step | None
    step_s: float | None
    ways: ProfileGoal
    seconds: float

    @property
    def step_known(self) -> bool:
        """Whether loading is measured beside a step."""
        return self.step is not None or self.step_s is not None

    def take(self, batch: Any) -> None:
        """What the training loop does with a batch."""
        if self.step is not None:
            self.step(batch)
        elif self.step_s:
            SYSTEM_CLOCK.sleep(self.step_s)  # the device is busy, and the host waits for it


class TuningRun:
    """From the first worker to the findings."""

    def __init__(self, pattern: DataLoader[Any], question: TuningQuestion, *, given: bool) -> None:
        self._pattern = pattern
        self._question = question
        self._ways = question.ways
        self._given = _setting_of(pattern) if given else None
        self._trials = SettingTrials(pattern, question.take, question.seconds)

    def run(self) -> TuningFindings:
        """All of it. What can be measured is; what cannot is said."""
        service = self._serve()
        cost = self._step_cost(service)
        workload = workload_of(self._pattern, service, cost)
        room = worker_limit(self._trials, service, self._ways.memory_share)
        guess = model_guess(workload, room.most, self._ways.rate_tolerance)
        self._trials.expects = partial(expected, workload, service)
        in_time = self._search(guess, room.most)
        self._try_variants(workload)
        self._run_again(guess)
        return self._findings(service, cost, workload, room, guess, in_time)

    # -- what things cost ------------------------------------------------------------------------------------------

    def _serve(self) -> WorkerCost:
        try:
            return self._trials.measure_worker_cost()
        except (StartFailed, FetchFailed) as error:
            raise explain_failure(error, self._trials) from error.__cause__

    def _step_cost(self, service: WorkerCost) -> StepCost:
        if self._question.step is None:
            return StepCost(self._question.step_s or 0.0)
        try:
            return time_step(self._question.step, service.last, until_s=self._trials.until_s(INLINE))
        except StepFailed as error:
            raise SettingError(
                f"step raised {one_line(error.__cause__)}",
                stage="step",
                advice="It is called with one batch, as the loader delivers it",
            ) from error.__cause__

    # -- runs ------------------------------------------------------------------------------------------------------

    def _search(self, guess: int, most: int) -> bool:
        """False where time was out before the answer was known."""
        trials = self._trials
        trials.run_inline(INLINE)
        given = self._given  # beyond `most` it would repeat samples, or not fit
        if given is not None and given not in trials.rows and given.workers <= most and not trials.stopped:
            trials.run(given)
        while not trials.stopped:
            rates = {**dict.fromkeys(trials.rows, 0.0), **trials.rates()}
            workers = next_workers(plain(rates), guess, most, self._ways.rate_tolerance)
            if workers is None:
                return True
            first = not any(setting.workers for setting in trials.rates())
            if not trials.fits(Setting(workers), AGAIN if first else SEARCH):
                return False
            trials.run(Setting(workers))
        return False

    def _try_variants(self, workload: Workload) -> None:
        """Deeper, or out of order: only where the simulator says that batches are uneven enough."""
        trials = self._trials
        if not trials.rates():
            return
        deeper = self._ways.max_prefetch > PREFETCH
        loose = HAS_IN_ORDER and bool(self._pattern.in_order)
        for setting in variants(workload, self._choice(), deeper=deeper, loose=loose):
            if not trials.stopped and setting not in trials.rows and trials.fits(setting, VARIANTS):
                trials.run(setting)

    def _run_again(self, guess: int) -> None:
        """Those that the choice is between, in turn, another one first in each round."""
        trials = self._trials
        for number in range(1, ROUNDS):
            if not trials.rates():
                return
            order = sorted(self._between(guess), key=Setting.cost)
            for setting in order[number % len(order) :] + order[: number % len(order)]:
                if not trials.stopped and not trials.rows[setting].computed and trials.fits(setting, AGAIN):
                    trials.run(setting)

    def _between(self, guess: int) -> set[Setting]:
        """Torch's default, the choice, the best; and two that one unlucky run may have ruled out.

        Those are the model's guess, and the one with the next fewer workers than the choice.
        """
        rates, choice = self._trials.rates(), self._choice()
        fewer = max((each for each in rates if 0 < each.workers < choice.workers), key=Setting.cost, default=choice)
        best = max(rates, key=lambda setting: rates[setting])
        return {Setting(), choice, best, fewer, Setting(guess)} & rates.keys()

    def _choice(self) -> Setting:
        return choose(self._trials.rates(), self._ways.rate_tolerance, step_known=self._question.step_known)

    # -- what came of it -------------------------------------------------------------------------------------------

    def _findings(
        self, service: WorkerCost, cost: StepCost, workload: Workload, room: WorkerLimit, guess: int, in_time: bool
    ) -> TuningFindings:
        trials = self._trials
        rates = trials.rates()
        if not rates or (trials.stopped and not trials.any_measured):
            failures = "; ".join(f"{setting}: {row.remark}" for setting, row in trials.rows.items() if row.remark)
            raise PenstockError(f"no setting could be measured: {failures}", stage="measure")
        chosen = self._choice()
        each = trials.samples_per_batch
        samples_s = {setting: rate * each for setting, rate in rates.items()}
        kwargs = chosen.kwargs()
        stay = self._stay(chosen, rates[chosen])
        if stay:
            kwargs["persistent_workers"] = True
        told = TuningFacts(
            service=service,
            cost=cost,
            step_known=self._question.step_known,
            cores=workload.cores,
            guess=guess,
            limit=next((bound.name for bound in bounds(workload.replace(workers=guess).demands())), "nothing"),
            chosen=chosen,
            rate_tolerance=self._ways.rate_tolerance,
            samples_s=samples_s,
            notes=tuple(word for word in (room.why, stay, self._kind(), self._ended(in_time)) if word),
        )
        return TuningFindings(
            kwargs=kwargs,
            samples_s=samples_s[chosen],
            default_samples_s=samples_s.get(Setting()),
            measured=trials.measured(self._whose()),
            reasons=explain(told),
            seconds=trials.passed_s,
            complete=trials.any_measured and not trials.stopped,
        )

    def _whose(self) -> dict[Setting, str]:
        whose = {Setting(): "torch's default"}
        if self._given is not None:
            whose[self._given] = "as given" if self._given.workers else "torch's default, as given"
        return whose

    def _stay(self, chosen: Setting, batches_s: float) -> str:
        """Why workers should live from epoch to epoch; empty where they should not, or already do."""
        dataset = self._pattern.dataset
        epoch = None if is_iterable(self._pattern) else length_of(self._pattern)
        starts = self._trials.rows[chosen].first_s
        if not chosen.workers or not starts or not epoch or self._pattern.persistent_workers:
            return ""
        start_s = float(np.median(starts))
        if start_s < SHORT_EPOCH * epoch / batches_s or hasattr(dataset, "set_epoch"):
            return ""
        return (
            f"persistent_workers: starting takes {start_s:.1f} s and an epoch {epoch / batches_s:.1f} s. "
            "Workers keep their copy of the dataset: what you change in it between epochs they do not see"
        )

    def _kind(self) -> str:
        kind = type(self._pattern)
        if kind is DataLoader:
            return ""
        return f"{kind.__qualname__} is a DataLoader of its own kind: loader() gives torch's; give kwargs to yours"

    def _ended(self, in_time: bool) -> str:
        if self._trials.stopped:
            return f"Ended early: {self._trials.stopped}. What was measured before that stands"
        return "" if in_time else "Time was out before every number of workers near the best was tried"


def _setting_of(pattern: DataLoader[Any]) -> Setting:
    if not pattern.num_workers:
        return Setting()
    return Setting(pattern.num_workers, pattern.prefetch_factor or PREFETCH)
