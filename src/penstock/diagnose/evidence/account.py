"""An account of a run: every second of it belongs to exactly one kind of time, so the kinds add up to the run.

The kinds that lie at known times are laid over each other, and where several apply the first in PRECEDENCE counts:
a step of an evaluation inside a step of the training is evaluation. Pauses of which only the length is known are then
taken off the step that they are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.types import Bools, Floats
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.loop import PAUSES, is_outermost
from penstock.recording.format import StepLine

SETUP = "before the first batch is requested"
STARTS = "waiting for the first batch of an epoch"
FIRST_STEPS = "first steps"
WAITING = "waiting for data"
COMPUTING = "computing"
EVALUATION = "evaluation"
CHECKPOINTS = "checkpoints"
BETWEEN = "between epochs"
AFTER = "after the last step"
PRECEDENCE = (CHECKPOINTS, EVALUATION, STARTS, FIRST_STEPS, WAITING, COMPUTING)
"""Kinds that lie at known times; what none of them covers is before, between or after the epochs."""
KINDS = (COMPUTING, WAITING, STARTS, FIRST_STEPS, EVALUATION, CHECKPOINTS, BETWEEN, SETUP, AFTER)
"""All kinds, in the order of reports."""
SIDE_BY_SIDE_MIN = 2
"""Requests to one loader within an epoch of another from which on both are used side by side."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Account:
    """Seconds of a run by kind."""

    run_s: float
    seconds: dict[str, float]
    """Seconds by kind, in the order of KINDS; they add up to `run_s`."""


def account_of(evidence: Evidence, others: Sequence[Evidence] = ()) -> Account:
    """Return the account of a run, as the loop over one loader sees it; `others` are the run's other loaders."""
    intervals = _known_intervals(evidence, others)
    run_s = _run_s(evidence, intervals)
    edges = np.unique(
        np.clip([0.0, run_s, *(edge for each in intervals.values() for pair in each for edge in pair)], 0, run_s)
    )
    if len(edges) < 2:
        return Account(0.0, dict.fromkeys(KINDS, 0.0))
    middles, lengths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    seconds = dict.fromkeys(KINDS, 0.0)
    free = np.ones(len(middles), bool)
    for kind in PRECEDENCE:
        covered = free & _covered(middles, intervals[kind])
        seconds[kind] = float(lengths[covered].sum())
        free &= ~covered
    steps = evidence.loop.all_steps
    first_s, last_s = min(step.at_s for step in steps), max(map(_end_s, steps))
    for kind, where in ((SETUP, middles < first_s), (AFTER, middles > last_s)):
        seconds[kind] = float(lengths[free & where].sum())
        free &= ~where
    seconds[BETWEEN] = float(lengths[free].sum())
    _take_pauses_off(seconds, evidence, intervals)
    return Account(run_s, seconds)


def _known_intervals(evidence: Evidence, others: Sequence[Evidence]) -> dict[str, list[Interval]]:
    loop = evidence.loop
    found: dict[str, list[Interval]] = {kind: [] for kind in PRECEDENCE}
    begin = min(loop.all_steps, key=lambda step: step.at_s)
    for step in loop.first_steps:
        found[STARTS].append((step.at_s, step.at_s + step.wait_s))
        found[FIRST_STEPS if step is begin else COMPUTING].append((step.at_s + step.wait_s, _end_s(step)))
    found[FIRST_STEPS] += [(step.at_s, _end_s(step)) for step in loop.warm_up_steps]
    for step in loop.steps:
        found[WAITING].append((step.at_s, step.at_s + step.wait_s))
        found[COMPUTING].append((step.at_s + step.wait_s, _end_s(step)))
    requests = np.sort([step.at_s for step in loop.all_steps])
    for other in others:
        for steps in _by_epoch(other.loop.all_steps):
            begin_s, end_s = min(step.at_s for step in steps), max(map(_end_s, steps))
            within = np.searchsorted(requests, end_s) - np.searchsorted(requests, begin_s, "right")
            if within < SIDE_BY_SIDE_MIN:
                found[EVALUATION] += [(step.at_s, _end_s(step)) for step in steps]
            else:
                found[WAITING] += [(step.at_s, step.at_s + step.wait_s) for step in steps]
    checkpoints = (event for event in evidence.recording.events if event.what == "checkpoint")
    found[CHECKPOINTS] += [(event.at_s, event.at_s + event.seconds) for event in checkpoints]
    return found


def _by_epoch(steps: Iterable[StepLine]) -> list[list[StepLine]]:
    found: dict[int, list[StepLine]] = {}
    for step in steps:
        found.setdefault(step.epoch, []).append(step)
    return list(found.values())


def _run_s(evidence: Evidence, intervals: dict[str, list[Interval]]) -> float:
    """Return the end of the run: of its last line, or of its last step if the end was not recorded."""
    recording = evidence.recording
    last_s = max((end for each in intervals.values() for _, end in each), default=0.0)
    return max(0.0, last_s, recording.end.at_s if recording.end else 0.0)


def _covered(times: Floats, intervals: Sequence[Interval]) -> Bools:
    """Return whether each time lies in one of the intervals, which may overlap."""
    begins, ends = (np.sort([pair[side] for pair in intervals]) for side in (0, 1))
    found: Bools = np.searchsorted(begins, times, "right") > np.searchsorted(ends, times, "right")
    return found


def _take_pauses_off(seconds: dict[str, float], evidence: Evidence, intervals: dict[str, list[Interval]]) -> None:
    """Move pauses whose place in their step is not known from computing to their own kind."""
    for phase, kind in zip(PAUSES, (EVALUATION, CHECKPOINTS), strict=True):
        steps = [step for step in evidence.loop.steps if any(is_outermost(path, (phase,)) for path in step.phases)]
        if not steps:
            continue
        placed_s = sum(
            max(0.0, min(end, _end_s(step)) - max(begin, step.at_s + step.wait_s))
            for step in steps
            for begin, end in _overlapping(intervals[kind], step)
        )
        in_phases_s = sum(s for step in steps for path, s in step.phases.items() if is_outermost(path, (phase,)))
        moved_s = min(seconds[COMPUTING], max(0.0, in_phases_s - placed_s))
        seconds[COMPUTING] -= moved_s
        seconds[kind] += moved_s


def _overlapping(intervals: Sequence[Interval], step: StepLine) -> list[Interval]:
    return [pair for pair in intervals if pair[0] < _end_s(step) and pair[1] > step.at_s]


def _end_s(step: StepLine) -> float:
    return step.at_s + step.wait_s + step.step_s
