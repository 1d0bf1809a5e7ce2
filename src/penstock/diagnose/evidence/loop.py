"""The training loop: what it waited for, and what it did with its batches.

The steady part only: the first wait of a pass is start-up (kept apart in `startups_s`), pauses that are none of the
loader's doing (evaluation, checkpoints) are taken out of the steps and kept in `pauses_s`. Where only some steps had
their phases looked at, each of those speaks for the others around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.diagnose.evidence.settings import Floats, Ints, LoaderSettingsEvidence
from penstock.recording.format import LOOKED_AT, StepLine

PAUSES = ("evaluation", "checkpoint")
"""Phases that are work of their own, not part of a step."""
TRAINING = frozenset({"forward", "backward", "optimizer"})
UNKNOWN = -1
"""In an array of counts."""


class LoopEvidence(LoaderSettingsEvidence):
    """Steps as arrays: one number for each."""

    @cached_property
    def wait_s(self) -> Floats:
        """In the loader, per step."""
        return np.array([step.wait_s for step in self.steps])

    @cached_property
    def pauses_s(self) -> Floats:
        """Evaluation and checkpoints, per step, wherever in the step they were."""
        told = np.array(
            [sum(s for path, s in step.phases.items() if is_outermost(path, PAUSES)) for step in self.steps]
        )
        paused: Floats = np.minimum(np.maximum(told, self._passes_within_s), self._step_s)
        return paused

    @cached_property
    def _passes_within_s(self) -> Floats:
        """Per step: other loaders' passes that began in it, up to their last batch and one usual step more.

        Where the loop leaves such a pass early, and its workers live on, nobody hears of its end.
        """
        found = np.zeros(len(self.steps))
        ends = np.array([_over(step) for step in self.steps])
        for passed in self.recording.passes:
            at = int(np.searchsorted(ends, passed.at_s))
            if passed.loader == self.loader.loader or at == len(ends):
                continue
            if not self.steps[at].at_s + self.steps[at].wait_s <= passed.at_s:
                continue
            theirs = self._steps_of.get((passed.loader, passed.number), [])
            within = [step for step in theirs if step.at_s < ends[at]]
            if len(within) >= 2:
                usual_s = float(np.median([step.step_s for step in within[:-1]]))
                found[at] += within[-1].at_s + within[-1].wait_s + usual_s - passed.at_s
        return found

    @cached_property
    def _steps_of(self) -> dict[tuple[int, int], list[StepLine]]:
        """Other loaders' steps, by loader and pass."""
        found: dict[tuple[int, int], list[StepLine]] = defaultdict(list)
        for step in self.recording.steps:
            if step.loader != self.loader.loader:
                found[step.loader, step.pass_].append(step)
        return found

    @cached_property
    def busy_s(self) -> Floats:
        """The loop's own time per step, pauses left out."""
        return np.maximum(self._step_s - self.pauses_s, 0.0)

    @cached_property
    def ready(self) -> Ints:
        """Batches that had arrived when the loop asked; UNKNOWN where nobody could tell."""
        return np.array([UNKNOWN if step.ready is None else step.ready for step in self.steps], np.int64)

    @cached_property
    def awaited(self) -> Ints:
        """Whose batch it was."""
        return np.array([UNKNOWN if step.worker is None else step.worker for step in self.steps], np.int64)

    @cached_property
    def startups_s(self) -> Floats:
        """The first wait of each pass."""
        return np.array([step.wait_s for step in self.firsts])

    @cached_property
    def endings_s(self) -> Floats:
        """From the last step of each pass until the loader let go of the loop: workers that end are waited for."""
        lasts = {step.pass_: step for step in (*self.firsts, *self.steps)}
        ends = [end for end in self.recording.pass_ends if end.loader == self.loader.loader and end.how == "done"]
        found = [end.at_s - _over(lasts[end.number]) for end in ends if end.number in lasts]
        return np.maximum(np.array(found, np.float64), 0.0)

    @cached_property
    def steady_s(self) -> float:
        """Time of all steady steps together."""
        return float(self.wait_s.sum() + self.busy_s.sum())

    @cached_property
    def total_s(self) -> float:
        """The same with the beginning and the end of passes."""
        around_s = float(self.startups_s.sum() + self.endings_s.sum())
        return self.steady_s + around_s + sum(step.step_s for step in self.firsts)

    @cached_property
    def cycle_s(self) -> float:
        """From batch to batch, on average."""
        return self.steady_s / max(1, len(self.steps))

    @cached_property
    def samples_per_batch(self) -> float:
        """NaN where nobody counted."""
        known = [step.samples for step in self.steps if step.samples]
        return float(np.mean(known)) if known else float("nan")

    @cached_property
    def wait_share(self) -> float:
        """Of the steady time, in the loader."""
        return float(self.wait_s.sum()) / self.steady_s if self.steady_s > 0 else 0.0

    @cached_property
    def slow(self) -> NDArray[np.bool_]:
        """Steps that waited long: over half the cycle, and far beyond the usual wait."""
        usual = float(np.median(self.wait_s)) if len(self.wait_s) else 0.0
        return self.wait_s > max(2 * usual, self.cycle_s / 2) if usual < self.cycle_s / 4 else self.wait_s > usual * 2

    @cached_property
    def speakers(self) -> Ints:
        """For each step the one whose phases stand for its own: itself, or else the nearest that was looked at."""
        return _nearest([step.looked for step in self.steps])

    @cached_property
    def spoken_for(self) -> Ints:
        """For each step how many it speaks for; 0: it was not looked at."""
        return np.bincount(self.speakers, minlength=len(self.steps))

    @cached_property
    def _step_s(self) -> Floats:
        """Of a step all but its wait, pauses included."""
        return np.array([step.step_s for step in self.steps])

    def _spoken(self, own_s: Floats, took_s: Floats) -> Floats:
        """A part of each step's time, which only steps that were looked at tell: of the others as their speaker has it.

        Few are looked at, and how long a step took is known of all: one that took longer than its speaker has more of
        the part, as much as longer ones have that were looked at.
        """
        looked = self.spoken_for > 0
        varied = float(np.var(took_s[looked])) if looked.any() else 0.0
        together = float(np.mean((took_s - took_s[looked].mean())[looked] * own_s[looked])) if varied > 0 else 0.0
        slope = together / varied if varied > 0 else 0.0
        return np.clip(own_s[self.speakers] + slope * (took_s - took_s[self.speakers]), 0.0, took_s)

    def phase_s(self, name: str) -> Floats:
        """Seconds per step in a phase, however deep it lies in others."""
        own = np.array(
            [
                sum(seconds for path, seconds in step.phases.items() if path.rsplit("/", 1)[-1] == name)
                for step in self.steps
            ]
        )
        if name not in LOOKED_AT:
            return own
        return self._spoken(own, self.wait_s if name == "sampler" else self.busy_s)

    @cached_property
    def rest_s(self) -> float | None:
        """Of a step, on average, in no phase at all; None where no phase of training was seen."""
        if not any(TRAINING & step.phases.keys() for step in self.steps):
            return None
        known = [
            sum(s for path, s in step.phases.items() if "/" not in path and path != "sampler") for step in self.steps
        ]
        rest = np.maximum(self._step_s - known, 0.0)
        return float(self._spoken(rest, self.busy_s).mean())

    def device_s(self, *without: str) -> float:
        """Of a step, on average, on the device's own clock, without these phases; 0 where there is none."""
        own = [
            sum(seconds for path, seconds in step.device_phases.items() if "/" not in path and path not in without)
            for step in self.steps
        ]
        return self.mean(np.array(own)[_nearest([bool(step.device_phases) for step in self.steps])])


def _nearest(which: Sequence[bool]) -> Ints:
    """For each the nearest of these, which may be itself; itself where there are none."""
    each, these = np.arange(len(which)), np.flatnonzero(which)
    if not len(these):
        return each
    after = these[np.minimum(np.searchsorted(these, each), len(these) - 1)]
    before = these[np.maximum(np.searchsorted(these, each, "right") - 1, 0)]
    return np.where(np.abs(after - each) < np.abs(each - before), after, before)


def _over(step: StepLine) -> float:
    return step.at_s + step.wait_s + step.step_s


def is_outermost(path: str, names: Collection[str]) -> bool:
    """Whether a phase is one of these, and in none of them: inside another one it is counted there."""
    *outer, name = path.split("/")
    return name in names and not any(other in names for other in outer)
