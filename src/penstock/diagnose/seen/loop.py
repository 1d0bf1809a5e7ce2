"""The training loop: what it waited for, and what it did with its batches.

The steady part only: the first wait of a pass is start-up (kept apart in `startups_s`), pauses that are none of the
loader's doing (evaluation, checkpoints) are taken out of the steps and kept in `pauses_s`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from penstock.diagnose.seen.settings import Floats, Ints, SeenSettings
from penstock.recording.lines import Step

PAUSES = ("evaluation", "checkpoint")
"""Phases that are work of their own, not part of a step."""
TRAINING = frozenset({"forward", "backward", "optimizer"})
UNKNOWN = -1
"""In an array of counts."""


class SeenLoop(SeenSettings):
    """Steps as arrays: one number for each."""

    @cached_property
    def wait_s(self) -> Floats:
        """In the loader, per step."""
        return np.array([step.wait_s for step in self.steps])

    @cached_property
    def pauses_s(self) -> Floats:
        """Evaluation and checkpoints, per step, wherever in the step they were."""
        return np.array([sum(s for path, s in step.phases.items() if _is_pause(path)) for step in self.steps])

    @cached_property
    def busy_s(self) -> Floats:
        """The loop's own time per step, pauses left out."""
        return np.maximum(np.array([step.step_s for step in self.steps]) - self.pauses_s, 0.0)

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

    def phase_s(self, name: str) -> Floats:
        """Seconds per step in a phase, however deep it lies in others."""
        return np.array(
            [
                sum(seconds for path, seconds in step.phases.items() if path.rsplit("/", 1)[-1] == name)
                for step in self.steps
            ]
        )

    @cached_property
    def rest_s(self) -> float | None:
        """Of a step, on average, in no phase at all; None where no phase of training was seen."""
        if not any(TRAINING & step.phases.keys() for step in self.steps):
            return None
        known = [
            sum(s for path, s in step.phases.items() if "/" not in path and path != "sampler") for step in self.steps
        ]
        return float(np.maximum(np.array([step.step_s for step in self.steps]) - known, 0.0).mean())

    def device_s(self, *without: str) -> float:
        """Of a step, on average, on the device's own clock, without these phases; 0 where there is none."""
        return self.mean(
            [
                sum(seconds for path, seconds in step.device_phases.items() if "/" not in path and path not in without)
                for step in self.steps
            ]
        )


def _over(step: Step) -> float:
    return step.at_s + step.wait_s + step.step_s


def _is_pause(path: str) -> bool:
    """A pause inside another one is counted there."""
    *outer, name = path.split("/")
    return name in PAUSES and not any(other in PAUSES for other in outer)
