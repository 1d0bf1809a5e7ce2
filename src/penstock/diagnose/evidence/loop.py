"""The training loop: how long each step waited for its batch, and what it did with it.

Steps are steady steps. The first step of every epoch, whose wait is the start of the workers, is kept apart
(`first_steps`, `startup_s`), and so are the first steps of the run, in which libraries choose algorithms, compile and
allocate (`warm_up_steps`). Evaluation and checkpoints are work of their own: their time is taken out of the steps
(`pause_s`). Where the phases of only some steps were timed, each of those represents the steps around it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.arrays import Spans, mean
from penstock.core.format import format_ms
from penstock.core.types import Bools, Floats, Ints
from penstock.recording.format import PROFILED_PHASES, StackSamplesLine, StepLine
from penstock.recording.reader import Recording

PAUSES = ("evaluation", "checkpoint")
"""Phases that are work of their own, not part of a step."""
TRAINING = frozenset({"forward", "backward", "optimizer"})
TORCH = frozenset({"torch", "torchvision", "torchaudio", "torchmetrics", "triton"})
"""Packages whose functions are the training itself, wherever the loop calls them."""
ACTIVITIES = {
    "running": "running Python",
    "read": "reading files",
    "open": "opening files",
    "lock": "waiting for a lock",
    "sleep": "sleeping",
    "network": "waiting for the network",
    "write": "writing",
    "other": "other system calls",
}
"""Descriptions of the states of a sampled thread."""
UNKNOWN = -1
"""Placeholder in an array of counts or of worker numbers."""
STEP_LEFT_MIN = 0.05
"""Share of the time per step that always remains when a cost is removed: keeps a predicted gain finite."""
STACK_SAMPLES_S = 0.5
"""Seconds that a line with stack samples covers."""
WAITED_MIN = 0.02
"""Share of the steady time: of a loop that waits less, all steady time counts, not only that of waiting."""
LONG_WAIT = 0.02
"""Share of the longest wait: in shorter ones the loop only receives a batch."""
FED_STEPS_MIN = 20
"""Least number of steps that are left without the ends of epochs."""
WARM_UP_SHARE, WARM_UP_STEPS_MAX = 0.25, 200
"""The warm-up lies in this share of the run's first steps, and in so many at most."""
WARM_UP_MEDIANS, WARM_UP_TAIL = 3.0, 1.5
"""A step belongs to the warm-up if it takes more than this multiple of the median of later steps, and of their slow
tail: steps that are long now and then, such as those that log, are long later too."""


@dataclass(frozen=True)
class LoopEvidence:
    """The steps of one loader; arrays hold one number for each steady step."""

    recording: Recording
    loader: int
    """Number of the loader in the recording."""
    steps: tuple[StepLine, ...]
    """Steady steps in order, without the first of each epoch."""
    first_steps: tuple[StepLine, ...]
    """The first step of each epoch: its wait is start-up."""
    warm_up_steps: tuple[StepLine, ...] = ()
    """Steps at the start of the run, up to the last one that was slowed by work that is done only once."""
    outstanding_tasks: int = 0
    """Tasks that the workers have at a time; at the end of an epoch there are fewer left."""

    @property
    def all_steps(self) -> tuple[StepLine, ...]:
        """All steps of the loader, in no particular order."""
        return (*self.first_steps, *self.warm_up_steps, *self.steps)

    # -- times -----------------------------------------------------------------------------------------------------

    @cached_property
    def wait_s(self) -> Floats:
        """Seconds in the loader."""
        return np.array([step.wait_s for step in self.steps])

    @cached_property
    def pause_s(self) -> Floats:
        """Seconds of evaluation and checkpoints, wherever in the step they were."""
        in_phases = np.array(
            [sum(s for path, s in step.phases.items() if is_outermost(path, PAUSES)) for step in self.steps]
        )
        paused: Floats = np.minimum(np.maximum(in_phases, self._other_loaders_s), self._step_s)
        return paused

    @cached_property
    def _other_loaders_s(self) -> Floats:
        """Seconds of other loaders' epochs that began in the step: up to their last batch and one typical step more.

        If the loop leaves such an epoch early and its workers persist, the end of the epoch is not recorded.
        """
        found = np.zeros(len(self.steps))
        ends = np.array([_end_s(step) for step in self.steps])
        for start in self.recording.epochs:
            index = int(np.searchsorted(ends, start.at_s))
            if start.loader == self.loader or index == len(ends):
                continue
            if not self.steps[index].at_s + self.steps[index].wait_s <= start.at_s:
                continue
            steps = self._other_loaders_steps.get((start.loader, start.epoch), [])
            within = [step for step in steps if step.at_s < ends[index]]
            if len(within) >= 2:
                typical_s = float(np.median([step.step_s for step in within[:-1]]))
                found[index] += within[-1].at_s + within[-1].wait_s + typical_s - start.at_s
        return found

    @cached_property
    def _other_loaders_steps(self) -> dict[tuple[int, int], list[StepLine]]:
        """Steps of the other loaders, by loader and epoch."""
        found: dict[tuple[int, int], list[StepLine]] = defaultdict(list)
        for step in self.recording.steps:
            if step.loader != self.loader:
                found[step.loader, step.epoch].append(step)
        return found

    @cached_property
    def busy_s(self) -> Floats:
        """Seconds of the loop's own work, without waits and pauses."""
        return np.maximum(self._step_s - self.pause_s, 0.0)

    @cached_property
    def _step_s(self) -> Floats:
        """Seconds of the step without its wait, pauses included."""
        return np.array([step.step_s for step in self.steps])

    @cached_property
    def startup_s(self) -> Floats:
        """Seconds waited for the first batch, for each epoch."""
        return np.array([step.wait_s for step in self.first_steps])

    @cached_property
    def shutdown_s(self) -> Floats:
        """Seconds from the last step until the iterator ended, for each epoch: the loader joins its workers."""
        last_steps = {step.epoch: step for step in self.all_steps}
        ends = [end for end in self.recording.epoch_ends if end.loader == self.loader and end.how == "done"]
        found = [end.at_s - _end_s(last_steps[end.epoch]) for end in ends if end.epoch in last_steps]
        return np.maximum(np.array(found, np.float64), 0.0)

    # -- when ------------------------------------------------------------------------------------------------------

    @cached_property
    def fed(self) -> Bools:
        """Whether the workers got a new task for each batch that was taken, which they do not at the end of an epoch.

        If that leaves too few steps, all count.
        """
        last: dict[int, int] = {}
        for step in self.steps:
            last[step.epoch] = max(step.batch, last.get(step.epoch, 0))
        found = np.array([step.batch <= last[step.epoch] - self.outstanding_tasks for step in self.steps], bool)
        return found if found.sum() >= max(FED_STEPS_MIN, len(found) / 4) else np.ones(len(found), bool)

    @cached_property
    def stalls(self) -> tuple[Floats, Floats]:
        """Begins and ends of the times over which the cores in use count: those in which the loop waits.

        If it hardly waits they are those of whole steps. The ends of epochs do not count.
        """
        begins = np.array([step.at_s for step in self.steps])[self.fed]
        waits_s, busy_s = self.wait_s[self.fed], np.where(self.pause_s > 0, 0.0, self._step_s)[self.fed]
        if waits_s.sum() < WAITED_MIN * (waits_s.sum() + busy_s.sum()):
            return begins, begins + waits_s + busy_s
        long = waits_s > LONG_WAIT * waits_s.max(initial=0.0)
        return begins[long], (begins + waits_s)[long]

    @cached_property
    def steady(self) -> Spans:
        """The times of steady steps; of a step with a pause only the wait, because the pause's place is not known."""
        begins = np.array([step.at_s for step in self.steps])
        return Spans(begins, begins + self.wait_s + np.where(self.pause_s > 0, 0.0, self._step_s))

    # -- totals ----------------------------------------------------------------------------------------------------

    @cached_property
    def steady_s(self) -> float:
        """Seconds of all steady steps together."""
        return float(self.wait_s.sum() + self.busy_s.sum())

    @cached_property
    def total_s(self) -> float:
        """Seconds of all steps, with the beginnings and ends of the epochs."""
        around_s = float(self.startup_s.sum() + self.shutdown_s.sum())
        warm_up_s = sum(step.wait_s + step.step_s for step in self.warm_up_steps)
        return self.steady_s + warm_up_s + around_s + sum(step.step_s for step in self.first_steps)

    @cached_property
    def cycle_s(self) -> float:
        """Mean seconds from one batch to the next."""
        return self.steady_s / max(1, len(self.steps))

    @cached_property
    def samples_per_batch(self) -> float:
        """Mean number of samples of a batch; NaN if they were not counted."""
        known = [step.samples for step in self.steps if step.samples]
        return float(np.mean(known)) if known else float("nan")

    @cached_property
    def wait_share(self) -> float:
        """Share of the steady time that was spent in the loader."""
        return float(self.wait_s.sum()) / self.steady_s if self.steady_s > 0 else 0.0

    @property
    def step_text(self) -> str:
        """The median of the loop's own time per step, as text."""
        return f"{format_ms(float(np.median(self.busy_s)) if len(self.busy_s) else 0.0)} at the median"

    # -- the loader's queue, as the loop saw it --------------------------------------------------------------------

    @cached_property
    def ready_batches(self) -> Ints:
        """Number of batches that had arrived when the loop requested one; UNKNOWN where that was not recorded."""
        return np.array([UNKNOWN if step.ready is None else step.ready for step in self.steps], np.int64)

    @cached_property
    def all_ready(self) -> Bools:
        """Whether all outstanding batches, and so the requested one, had arrived when the loop requested it."""
        outstanding = [UNKNOWN if step.outstanding is None else step.outstanding for step in self.steps]
        requested = np.array(outstanding, np.int64)
        return (requested > 0) & (self.ready_batches >= requested)

    @cached_property
    def awaited_worker(self) -> Ints:
        """Number of the worker that made the batch; UNKNOWN where that was not recorded."""
        return np.array([UNKNOWN if step.worker is None else step.worker for step in self.steps], np.int64)

    @cached_property
    def slow(self) -> Bools:
        """Whether the step waited for long: over half the cycle, and far beyond the typical wait."""
        typical = float(np.median(self.wait_s)) if len(self.wait_s) else 0.0
        limit = max(2 * typical, self.cycle_s / 2) if typical < self.cycle_s / 4 else typical * 2
        return self.wait_s > limit

    # -- phases ----------------------------------------------------------------------------------------------------

    @cached_property
    def representatives(self) -> Ints:
        """Index of the step whose phases represent the step: itself, or the nearest step whose phases were timed."""
        return _nearest([step.profiled for step in self.steps])

    @cached_property
    def represented(self) -> Ints:
        """Number of steps that the step represents; 0 if its phases were not timed."""
        return np.bincount(self.representatives, minlength=len(self.steps))

    def _estimate_all(self, part_s: Floats, whole_s: Floats) -> Floats:
        """Return `part_s` for all steps, where it is known for the steps with timed phases only.

        `whole_s` contains the part and is known for every step. A step takes the value of its representative, plus a
        correction: if it took longer than its representative, its part is longer too, by the slope of a linear
        regression over the timed steps.
        """
        timed = self.represented > 0
        variance = float(np.var(whole_s[timed])) if timed.any() else 0.0
        covariance = float(np.mean((whole_s - whole_s[timed].mean())[timed] * part_s[timed])) if variance > 0 else 0.0
        slope = covariance / variance if variance > 0 else 0.0
        estimate = part_s[self.representatives] + slope * (whole_s - whole_s[self.representatives])
        return np.clip(estimate, 0.0, whole_s)

    def phase_s(self, name: str) -> Floats:
        """Return the seconds in a phase, however deeply it is nested in others."""
        timed = np.array(
            [
                sum(seconds for path, seconds in step.phases.items() if path.rsplit("/", 1)[-1] == name)
                for step in self.steps
            ]
        )
        if name not in PROFILED_PHASES:
            return timed
        return self._estimate_all(timed, self.wait_s if name == "sampler" else self.busy_s)

    @cached_property
    def outside_phases_s(self) -> float | None:
        """Mean seconds of a step outside all phases; None if no phase of training was recorded."""
        if not any(TRAINING & step.phases.keys() for step in self.steps):
            return None
        known = [
            sum(s for path, s in step.phases.items() if "/" not in path and path != "sampler") for step in self.steps
        ]
        outside_s = np.maximum(self._step_s - known, 0.0)
        return float(self._estimate_all(outside_s, self.busy_s).mean())

    def device_s(self, *excluded: str) -> float:
        """Return the mean seconds of a step on the device's own clock, without these phases; 0 if it was not read."""
        timed = [
            sum(seconds for path, seconds in step.device_phases.items() if "/" not in path and path not in excluded)
            for step in self.steps
        ]
        return mean(np.array(timed)[_nearest([bool(step.device_phases) for step in self.steps])])

    def saving(self, seconds: float, *phases: str) -> float:
        """Return by how much a step becomes shorter if it takes so much less time on the host.

        The device then limits it, with these phases taken off its time too.
        """
        left_s = max(self.cycle_s - seconds, self.device_s(*phases), STEP_LEFT_MIN * self.cycle_s)
        return max(0.0, self.cycle_s - left_s)

    # -- stack samples of the loop's thread ------------------------------------------------------------------------

    @cached_property
    def thread_states(self) -> dict[str, float]:
        """Shares of the time of the loop's thread, outside the loader, by the state it was sampled in."""
        return shares(line.states for line in self._stack_samples)

    @cached_property
    def functions(self) -> dict[str, float]:
        """Shares of the stack samples of the loop's thread by innermost function, the most frequent first."""
        return by_frequency(shares(line.functions for line in self._stack_samples))

    @cached_property
    def torch_share(self) -> float:
        """Share of these samples in functions of torch: losses, metrics and other operators that are no module."""
        return sum(share for name, share in self.functions.items() if name.partition(":")[0].split(".")[0] in TORCH)

    @cached_property
    def own_code_s(self) -> float | None:
        """Mean seconds of a step outside all phases and outside torch; None if no phase of training was recorded.

        Where the loop's thread was sampled in torch for a larger part of the step than the phases take, the rest of
        these samples are operators that the loop calls itself, as it does for a loss: they belong to the step.
        """
        if self.outside_phases_s is None:
            return None
        return min(self.outside_phases_s, (1 - self.torch_share) * mean(self.busy_s))

    @property
    def activities(self) -> str:
        """The activities of the loop's thread outside the loader and outside torch, as text; empty without samples."""
        others = {ACTIVITIES.get(state, state): share for state, share in self.thread_states.items()}
        python = others.pop(ACTIVITIES["running"], 0.0) - self.torch_share
        shares_of = by_frequency({**others, ACTIVITIES["running"]: max(0.0, python)})
        whole = sum(shares_of.values())
        return ", ".join(
            f"{name} {share / whole:.0%}" for name, share in shares_of.items() if share >= 0.05 * whole > 0
        )

    @cached_property
    def _stack_samples(self) -> tuple[StackSamplesLine, ...]:
        """Lines on the loop's thread that were written in or soon after steady steps; all if there are none."""
        lines = tuple(line for line in self.recording.stack_samples if line.worker is None)
        at_s = np.array([line.at_s for line in lines])
        steady = self.steady.within(at_s - STACK_SAMPLES_S, at_s) > STACK_SAMPLES_S / 2
        return tuple(line for line, in_steps in zip(lines, steady, strict=True) if in_steps) or lines


def count_warm_up(busy_s: Floats) -> int:
    """Return the number of steps until the last one that first-time work made slow, given the time of all steps."""
    early = min(int(WARM_UP_SHARE * len(busy_s)), WARM_UP_STEPS_MAX)
    if not early:
        return 0
    later = busy_s[early:]
    limit_s = max(WARM_UP_MEDIANS * float(np.median(later)), WARM_UP_TAIL * float(np.quantile(later, 0.98)))
    slow = np.flatnonzero(busy_s[:early] > limit_s)
    return int(slow[-1]) + 1 if len(slow) else 0


def _nearest(which: Sequence[bool]) -> Ints:
    """Return for each index the nearest index that is marked; every index itself if none is marked."""
    indices, marked = np.arange(len(which)), np.flatnonzero(which)
    if not len(marked):
        return indices
    after = marked[np.minimum(np.searchsorted(marked, indices), len(marked) - 1)]
    before = marked[np.maximum(np.searchsorted(marked, indices, "right") - 1, 0)]
    return np.where(np.abs(after - indices) < np.abs(indices - before), after, before)


def _end_s(step: StepLine) -> float:
    return step.at_s + step.wait_s + step.step_s


def is_outermost(path: str, names: Collection[str]) -> bool:
    """Return whether a phase is one of these and not nested in another of them, where its time is counted already."""
    *outer, name = path.split("/")
    return name in names and not any(other in names for other in outer)


def shares(counts: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """Return the share of each name in all these counts of stack samples."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    number = total.total()
    return {name: count / number for name, count in total.items()} if number else {}


def by_frequency(named: Mapping[str, float]) -> dict[str, float]:
    """Return shares sorted, the largest first."""
    return dict(sorted(named.items(), key=lambda item: -item[1]))
