"""The gain of removing a cause or of changing a setting: the one place that findings, plans and reports take it from.

A gain is the relative increase in samples per second. It never exceeds the ceiling: the rate of the step alone, as if
data cost nothing. Its interval is one for the next run, not only for this one: the bootstrap within the run, the
differences between runs, and the error of the model are all in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, expm1, isfinite, log, log1p, sqrt
from typing import NamedTuple

import numpy as np

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Remedy, Suspect
from penstock.model.bootstrap import bootstrap
from penstock.model.workload import Workload

GAIN_MIN = 0.05
"""A smaller gain is not worth a change, and is within what runs differ by."""
GAIN_MAX = 99.0
"""Gains are limited to a hundredfold: beyond it the model only says that nothing else takes time, as in an empty
loop."""
LOG_MAX = log1p(GAIN_MAX)
RESAMPLES = 40
"""Number of bootstrap resamples for the interval of a gain."""
MODEL_ERROR = 0.09
"""Standard deviation of predicted over measured rate, as a logarithm, for changes that alter the rate by a third or
more: 43 of 48 settings were predicted within 15% (docs/benchmarks.md, plan-predict)."""
FULL_ERROR_LOG = 0.3
"""Logarithm of a change of the rate from which on the model has that error; of smaller changes it has less: gains of
20% were off by 5% of the rate (docs/benchmarks.md, faults)."""
RUN_VARIATION = 0.03
"""Standard deviation of the ratio of two runs with the same settings: each differs by about 2%."""
BOUND_95 = 1.96
"""Standard deviations of a normal distribution that hold 95% to both sides."""


class PredictedGain(NamedTuple):
    """A gain, and the bounds between which 95% of repeated measurements are expected to lie."""

    low: float
    gain: float
    high: float


@dataclass(frozen=True)
class Gains:
    """Predicts gains over the rate of one loader's run."""

    evidence: Evidence
    model_error: float = MODEL_ERROR
    """See MODEL_ERROR; the error of earlier predictions on this machine where `penstock verify` knows it."""

    def of(self, suspect: Suspect) -> PredictedGain:
        """Return the gain of removing a suspected cause."""
        if suspect.saved_s is not None:
            return self.of_saving(suspect.saved_s)
        if suspect.remedy is not None and self.evidence.workload is not None:
            return self.of_edit(suspect.remedy)
        gain = _limited(suspect.gain or 0.0)
        if suspect.gain_of_loading:
            gain = min(gain, self.ceiling)
        return PredictedGain(gain, gain, gain)

    def of_edit(self, edit: Remedy) -> PredictedGain:
        """Return the gain of a change that the simulator can make to the recorded run.

        In simulation the change closes some part of the distance between the rate of the run and that of the step
        alone. The same part of the measured distance is the gain, so what the model does not explain is not gained.
        """
        workload = self._workload
        changed = edit(workload)
        step_s = float(changed.step_s.mean()) + (self._delayed_by_others_s if changed.competitors else 0.0)
        ceiling, distance = self._ceiling(step_s), _log_ratio(_rate_of_step(changed), workload.steady_rate)
        if ceiling >= GAIN_MAX or distance <= 0:
            scale = 1.0 if distance > 0 else 0.0
        else:
            scale = log1p(ceiling) / distance
        predicted = bootstrap(workload, edit, RESAMPLES, seed=0)
        scaled = (expm1(min(log1p(max(_limited(part), -0.99)) * scale, LOG_MAX)) for part in predicted)
        return self._with_errors(PredictedGain(*scaled), ceiling)

    def of_saving(self, seconds: float) -> PredictedGain:
        """Return the gain of a step of the loop that is shorter by this; if data then limits the rate, it is less."""
        cycle_s = self.evidence.loop.cycle_s
        most = _limited(cycle_s / (cycle_s - seconds) - 1) if 0 <= seconds < cycle_s else 0.0
        if self.evidence.workload is None:
            return self._with_errors(PredictedGain(most, most, most), most)
        return self._with_errors(
            PredictedGain(
                *bootstrap(self.evidence.workload, lambda run: shorter_step(run, seconds), RESAMPLES, seed=0)
            ),
            most,
        )

    @cached_property
    def ceiling(self) -> float:
        """The gain if every batch were ready when it is requested, and no worker took a core from the step."""
        return self._ceiling(mean(self.evidence.contention.step_s) + self._delayed_by_others_s)

    @cached_property
    def _delayed_by_others_s(self) -> float:
        """Mean seconds of a step that it waits for cores which processes outside the run have: loading cannot save it.

        The waiting for cores is divided by who uses them.
        """
        machine, queued_s = self.evidence.machine, mean(self.evidence.loop.busy_s - self.evidence.contention.step_s)
        used = machine.others_cpu + machine.workers_cpu
        return max(0.0, queued_s) * machine.others_cpu / used if used > 0 else 0.0

    def waiting_removed(self, suspect: Suspect) -> float:
        """Return the share of the waiting for data that a cause explains: in simulation, what remains without it."""
        if suspect.saved_s is not None or self.evidence.starved_share <= 0:
            return 0.0
        if suspect.remedy is None or self.evidence.workload is None:
            return min(1.0, (1 - 1 / (1 + self.of(suspect).gain)) / self.evidence.starved_share)
        before, after = (_waited_s(workload) for workload in (self._workload, suspect.remedy(self._workload)))
        return min(1.0, max(0.0, 1 - after / before)) if before > 0 else 0.0

    def _ceiling(self, step_s: float) -> float:
        return _limited(max(0.0, self.evidence.rate_cycle_s / step_s - 1)) if step_s > 0 else GAIN_MAX

    @property
    def _workload(self) -> Workload:
        workload = self.evidence.workload
        assert workload is not None
        return workload

    def _with_errors(self, found: PredictedGain, ceiling: float) -> PredictedGain:
        """Widen the bootstrap's interval by the errors that it does not contain, and cut it at the ceiling."""
        gain = min(_limited(found.gain), ceiling)
        within = (log1p(_limited(found.high)) - log1p(max(_limited(found.low), -0.9))) / 2 / BOUND_95
        model = self.model_error * min(1.0, abs(log1p(gain)) / FULL_ERROR_LOG)
        deviation = BOUND_95 * sqrt(within**2 + model**2 + RUN_VARIATION**2)
        low, high = (expm1(log1p(gain) + sign * deviation) for sign in (-1, 1))
        return PredictedGain(low, gain, max(gain, min(high, (1 + ceiling) * exp(BOUND_95 * RUN_VARIATION) - 1)))


def shorter_step(workload: Workload, seconds: float) -> Workload:
    """Return the workload of a loop that does so much less in each step, and then while it receives a batch."""
    step_s = np.maximum(workload.step_s - seconds, 0.0)
    rest_s = np.maximum(seconds - (workload.step_s - step_s), 0.0)
    share = np.divide(workload.step_cpu_s, workload.step_s, out=np.zeros(len(workload)), where=workload.step_s > 0)
    receive_s = np.maximum(workload.receive_s - rest_s, 0.0)
    return workload.replace(step_s=step_s, step_cpu_s=step_s * share, receive_s=receive_s)


def _rate_of_step(workload: Workload) -> float:
    """Return the simulated rate if data cost nothing: that of the step, beside processes outside the run."""
    free = np.zeros(1)
    return workload.replace(cpu_s=free, latency_s=free, io_s=free, lock_s=free, receive_s=free).steady_rate


def _waited_s(workload: Workload) -> float:
    """Return the mean seconds that the loop waits for a batch in simulation, beyond receiving it."""
    outstanding = workload.worker_pool().outstanding_tasks
    steps = len(workload) + outstanding
    run = workload.simulate(steps, prefetched=outstanding)
    waits_s = run.wait_s[outstanding:] if workload.workers else run.wait_s
    return float(np.maximum(waits_s - workload.receive_s.mean(), 0.0).mean())


def _log_ratio(numerator: float, denominator: float) -> float:
    """Return the logarithm of a ratio of rates, at most that of a hundredfold."""
    if not isfinite(denominator):
        return 0.0
    return LOG_MAX if not isfinite(numerator) else min(LOG_MAX, log(numerator / denominator))


def _limited(gain: float) -> float:
    """Return the gain, at most GAIN_MAX; also for NaN, which the interval around an infinite gain may contain."""
    return gain if gain < GAIN_MAX else GAIN_MAX
