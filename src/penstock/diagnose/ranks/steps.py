"""How long the ranks' own steps take, and why the step of one rank takes longer.

Ranks that train together meet in `backward`, in the collective that sums their gradients: a rank that is there early
waits for the last one. So a whole step takes equally long on all ranks, and the slow rank is the one that spends the
least time *in the collective*.

On a GPU the host only launches the work. There, the time in `backward` is taken from the device's own clock, if it was
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import median

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.core.types import Floats
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.evidence.loop import is_outermost
from penstock.diagnose.ranks.waits import RankSkew, StepKey, step_key
from penstock.diagnose.verdict import STEPS_MIN
from penstock.recording.format import StepLine
from penstock.recording.reader import Recording

BACKWARD = "backward"
COLLECTIVE = (BACKWARD, "sync")
"""Phases in which the host waits for the other ranks, or for a device that does."""
WAITING, OUTSIDE = "waiting for data", "the time outside all phases"
MIRRORED_MIN = 0.5
"""Share of a rank's lateness that must be seen as longer work elsewhere: else it only has less to do in `backward`."""
DEVIATIONS_MIN = 3.0
"""Standard errors by which a rank must be later than all others, on average over the steps: less may be chance."""
EXPLAINED_MIN = 0.5
"""Share of a step's additional time that a cause must account for to be named."""
OTHERS_MIN_CORES = 0.25
"""Cores that processes outside the run must use to be named."""
LARGER_BATCH_MIN = 0.1
"""Relative difference from which on a batch counts as larger than another."""
STATE_DIFFERENCE_MIN = 0.2
"""Share of the stack samples by which a state must be more frequent than on other ranks: less may be chance."""

Others = Sequence[Evidence]
"""The evidence of the other ranks."""


@dataclass(frozen=True)
class CollectiveWaits(RankSkew):
    """The time that each rank spends in the collective and outside; a rank is late by how much less it spends
    inside."""

    collective_s: Floats
    """Mean seconds of a step in the collective, for each rank."""
    phases_s: tuple[Mapping[str, float], ...]
    """Mean seconds of a step outside the collective by phase, for each rank; waiting for data is one of them."""
    on_device: bool
    """Whether the times are those of the device's clock."""

    @cached_property
    def slow(self) -> int | None:
        """The row of the rank whose own step holds the others back; None also if its data does."""
        row = self.holder
        if row is None:
            return None
        less_s = self.typical_collective_s(row) - float(self.collective_s[row])
        mirrored = self.excess_s(row) >= MIRRORED_MIN * less_s
        return row if mirrored and self._is_significant(row) and self.largest_difference(row) != WAITING else None

    def _is_significant(self, row: int) -> bool:
        later_s = self.late_s[row] - np.delete(self.late_s, row, axis=0).max(axis=0)
        return bool(later_s.mean() >= DEVIATIONS_MIN * later_s.std() / np.sqrt(len(later_s)))

    def cost_share(self, row: int) -> float:
        """Return the share of the time that the rank costs the others; it holds for steps that were not profiled
        too."""
        return float(self.alone_s[row]) / self.time_s if self.time_s > 0 else 0.0

    def own_s(self, row: int) -> float:
        """Return the mean seconds of a step outside the collective."""
        return sum(self.phases_s[row].values())

    def typical_s(self, row: int) -> float:
        """Return the median of that over the other ranks."""
        return median(self._others([self.own_s(each) for each in range(len(self.ranks))], row))

    def excess_s(self, row: int) -> float:
        """Return by how many seconds a step takes longer than on the other ranks."""
        return self.own_s(row) - self.typical_s(row)

    def largest_difference(self, row: int) -> str:
        """Return the phase that most of the difference lies in."""
        phases = self.phases_s[row]
        return max(phases, key=lambda name: phases[name] - self.typical_phase_s(row, name))

    def typical_phase_s(self, row: int, name: str) -> float:
        """Return the median of the other ranks' seconds in a phase."""
        return median(self._others([phases[name] for phases in self.phases_s], row))

    def typical_collective_s(self, row: int) -> float:
        """Return the median of the other ranks' seconds in the collective."""
        return median(self._others(self.collective_s, row))

    @staticmethod
    def _others(values: Sequence[float] | Floats, row: int) -> list[float]:
        return [float(value) for index, value in enumerate(values) if index != row]


def collective_waits(ranks: Sequence[Recording]) -> CollectiveWaits | None:
    """Return the times in the collective; None for a single rank, or if too few steps were profiled on all ranks."""
    if len(ranks) < 2:
        return None
    profiled = [_steps_with_backward(evidence) for evidence in map(gather, ranks)]
    common = sorted(set.intersection(*map(set, profiled)))
    if len(common) < STEPS_MIN:
        return None
    steps = [[table[key] for key in common] for table in profiled]
    on_device = all(BACKWARD in step.device_phases for row in steps for step in row)
    collective_s = np.array([[_collective_s(step, on_device) for step in row] for row in steps])
    return CollectiveWaits(
        ranks=tuple(recording.run.rank for recording in ranks),
        late_s=collective_s.max(axis=0) - collective_s,
        time_s=float(np.mean([sum(step.wait_s + step.step_s for step in row) for row in steps])),
        collective_s=collective_s.mean(axis=1),
        phases_s=_with_all_phases([_phases_outside(row, on_device) for row in steps]),
        on_device=on_device,
    )


def _steps_with_backward(evidence: Sequence[Evidence]) -> dict[StepKey, StepLine]:
    """Return the steady steps whose phases were recorded, `backward` among them."""
    return {
        step_key(each, step): step
        for each in evidence
        for step in each.loop.steps
        if any(path.rsplit("/", 1)[-1] == BACKWARD for path in step.phases)
    }


def _collective_s(step: StepLine, on_device: bool) -> float:
    if on_device:
        return step.device_phases[BACKWARD]
    return sum(seconds for path, seconds in step.phases.items() if is_outermost(path, COLLECTIVE))


def _phases_outside(steps: Sequence[StepLine], on_device: bool) -> dict[str, float]:
    """Return the mean seconds of a step by phase, without the collective."""
    sums = {WAITING: sum(step.wait_s for step in steps)}
    for step in steps:
        for path, seconds in (step.device_phases if on_device else step.phases).items():
            outermost, _, inner = path.partition("/")
            if not inner and outermost not in (*COLLECTIVE, "sampler"):
                sums[outermost] = sums.get(outermost, 0.0) + seconds
            elif inner and is_outermost(path, COLLECTIVE) and not on_device:
                sums[outermost] = sums.get(outermost, 0.0) - seconds
    whole_s = sum(step.wait_s + step.step_s - _collective_s(step, on_device) for step in steps)
    sums[OUTSIDE] = max(0.0, whole_s - sum(sums.values()))
    return {name: max(0.0, seconds) / len(steps) for name, seconds in sums.items()}


def _with_all_phases(ranks: Sequence[Mapping[str, float]]) -> tuple[Mapping[str, float], ...]:
    """Give every rank all phases: one that a rank does not have, such as a checkpoint, took it no time."""
    names = dict.fromkeys(name for phases in ranks for name in phases)
    return tuple({name: phases.get(name, 0.0) for name in names} for phases in ranks)


# -- why a rank's own step takes longer ------------------------------------------------------------------------------


def describe_slow_rank(ranks: Sequence[Recording], waits: CollectiveWaits, row: int, time_s: float) -> str:
    """Return a sentence about a rank whose own step holds the others back; `time_s` is the time of all steps."""
    share = waits.cost_share(row)
    return (
        f"Rank {waits.ranks[row]} holds the others back by its own step: outside of backward, where ranks meet, it "
        f"takes {format_ms(waits.own_s(row))} a step and the others {format_ms(waits.typical_s(row))}, and "
        f"most of the difference is {waits.largest_difference(row)}. The others wait in backward for "
        f"{format_ms(waits.typical_collective_s(row))}, it for {format_ms(float(waits.collective_s[row]))}, which cost "
        f"all {len(ranks)} ranks at least {format_ms(share * time_s)}, {share:.0%} of the time; "
        f"{_why(ranks, waits, row)}."
    )


def _why(ranks: Sequence[Recording], waits: CollectiveWaits, row: int) -> str:
    """Return what its process or device did more of than those of the others."""
    slow = gather(ranks[row])[0]
    others = [gather(rank)[0] for index, rank in enumerate(ranks) if index != row]
    typical = _typical(others, lambda each: each.loop.samples_per_batch)
    if slow.loop.samples_per_batch > typical * (1 + LARGER_BATCH_MIN):
        return f"its batches have {slow.loop.samples_per_batch:.0f} samples, those of the others {typical:.0f}"
    phase = waits.largest_difference(row)
    if waits.on_device and phase != OUTSIDE:
        return (
            f"by its own clock its device takes {format_ms(waits.phases_s[row][phase])} for {phase}, those of the "
            f"others {format_ms(waits.typical_phase_s(row, phase))}: check its clock rate, its temperature and which "
            f"other processes use it"
        )
    if not all(any(line.processes for line in each.machine.system) for each in (slow, *others)):
        return "the reason is unknown: the load of its process was not recorded"
    return _why_on_the_host(slow, others, waits.excess_s(row))


def _why_on_the_host(slow: Evidence, others: Others, excess_s: float) -> str:
    """Return which accounts for most of the additional time: a CPU quota, waiting for a core, or computing."""
    more_s, describe = max(((more(slow, others), describe) for more, describe in _CAUSES), key=lambda cause: cause[0])
    return describe(slow, others) if more_s >= EXPLAINED_MIN * excess_s else _waiting(slow, others)


def _more_throttled_s(slow: Evidence, others: Others) -> float:
    return _throttled_s(slow) - _typical(others, _throttled_s)


def _more_queued_s(slow: Evidence, others: Others) -> float:
    """Return the seconds of waiting for a core beyond those that its own computing causes on the other ranks too."""
    return _queue_s(slow) - _cpu_s(slow) * _typical(others, _queue_per_cpu)


def _more_computed_s(slow: Evidence, others: Others) -> float:
    """Return the additional seconds of computing, with the waiting for a core that they cause."""
    return (_cpu_s(slow) - _typical(others, _cpu_s)) * (1 + _typical(others, _queue_per_cpu))


def _throttled(slow: Evidence, others: Others) -> str:
    typical = _typical(others, lambda each: each.machine.throttled)
    return f"its cgroup's CPU quota stops it {slow.machine.throttled:.0%} of the time, the others {typical:.0%}"


def _queued(slow: Evidence, others: Others) -> str:
    typical = _typical(others, lambda each: each.machine.main_queue)
    text = f"it waits for a core {slow.machine.main_queue:.0%} of its time, the others {typical:.0%}"
    if slow.machine.others_cpu - _typical(others, lambda each: each.machine.others_cpu) < OTHERS_MIN_CORES:
        return text
    return f"{text}: processes that are not of this run use {slow.machine.others_cpu:.1f} cores of its machine"


def _computing(slow: Evidence, others: Others) -> str:
    own, typical = format_ms(_cpu_s(slow)), format_ms(_typical(others, _cpu_s))
    return f"it computes {own} a step and the others {typical}: it has more to do, or slower cores"


_CAUSES: tuple[tuple[Callable[[Evidence, Others], float], Callable[[Evidence, Others], str]], ...] = (
    (_more_throttled_s, _throttled),
    (_more_queued_s, _queued),
    (_more_computed_s, _computing),
)
"""(additional seconds of a step compared with the other ranks, text) of each possible cause."""


def _waiting(slow: Evidence, others: Others) -> str:
    """Describe a step that is neither computing nor waiting for a core, by where its thread was sampled."""
    text = "it does not compute more, and has its core: it waits for something"
    states = [state for state in slow.loop.thread_states if state != "running"]
    more = {state: _state_share(state, slow) - _typical(others, partial(_state_share, state)) for state in states}
    state = max(more, key=more.__getitem__, default="")
    return f"{text}, most often in {state}" if state and more[state] >= STATE_DIFFERENCE_MIN else text


def _state_share(state: str, evidence: Evidence) -> float:
    return evidence.loop.thread_states.get(state, 0.0)


def _cpu_s(evidence: Evidence) -> float:
    """Return the mean seconds per step that the training's own process computed, all its threads together."""
    return mean([process.cpu for process in evidence.machine.main_processes]) * evidence.loop.cycle_s


def _queue_s(evidence: Evidence) -> float:
    return evidence.machine.main_queue * evidence.loop.cycle_s


def _throttled_s(evidence: Evidence) -> float:
    return evidence.machine.throttled * evidence.loop.cycle_s


def _queue_per_cpu(evidence: Evidence) -> float:
    """Return the seconds of waiting for a core for each second of computing."""
    cpu_s = _cpu_s(evidence)
    return _queue_s(evidence) / cpu_s if cpu_s > 0 else 0.0


def _typical(others: Others, value: Callable[[Evidence], float]) -> float:
    return float(median(value(each) for each in others))
