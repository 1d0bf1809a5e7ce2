"""A rank whose own step holds the others back: in one sentence, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.ranks.collectives import REST, CollectiveWaits
from penstock.recording.reader import Recording

EXPLAINS = 0.5
"""Of what a step takes longer: what accounts for less is not why."""
NOTICED = 0.25
"""Cores in the hands of others: fewer are in nobody's way."""
MORE = 0.1
"""Samples in a batch that differ by a smaller share are as many."""
OFTEN = 0.2
"""More of the looks than elsewhere: less may be chance."""

Others = Sequence[Evidence]


def find_slow_steps(ranks: Sequence[Recording], meetings: CollectiveWaits, row: int, time_s: float) -> str:
    """Who, by how much in all of that time, and why."""
    share = meetings.held(row)
    return (
        f"Rank {meetings.ranks[row]} holds the others back by its own step: outside of backward, where ranks meet, it "
        f"takes {format_ms(meetings.own_s(row))} a step and the others {format_ms(meetings.usual_s(row))}, and "
        f"most of the difference is {meetings.differs(row)}. The others stand in backward for "
        f"{format_ms(meetings.usual_met_s(row))}, it for {format_ms(float(meetings.met_s[row]))}, which cost all "
        f"{len(ranks)} ranks at least {format_ms(share * time_s)}, {share:.0%} of the time; "
        f"{_why(ranks, meetings, row)}."
    )


def _why(ranks: Sequence[Recording], meetings: CollectiveWaits, row: int) -> str:
    """What its own process or device did more of than those of the others."""
    mine = gather(ranks[row])[0]
    others = [gather(rank)[0] for at, rank in enumerate(ranks) if at != row]
    usual = _usual(others, lambda each: each.loop.samples_per_batch)
    if mine.loop.samples_per_batch > usual * (1 + MORE):
        return f"its batches have {mine.loop.samples_per_batch:.0f} samples, those of the others {usual:.0f}"
    part = meetings.differs(row)
    if meetings.on_device and part != REST:
        return (
            f"by its own clock its device takes {format_ms(meetings.parts_s[row][part])} for {part}, those of the "
            f"others {format_ms(meetings.usual_part_s(row, part))}: look at its clock rate, its temperature and who "
            f"else uses it"
        )
    if not all(any(look.processes for look in each.machine.system) for each in (mine, *others)):
        return "why is not known: nobody looked at what its process did"
    return _by_the_cores(mine, others, meetings.excess_s(row))


def _by_the_cores(mine: Evidence, others: Others, excess_s: float) -> str:
    """Stopped, in line or computing: whichever accounts for most of what its step takes longer."""
    more_s, words = max(((more(mine, others), words) for more, words in _CAUSES), key=lambda cause: cause[0])
    return words(mine, others) if more_s >= EXPLAINS * excess_s else _waiting(mine, others)


def _stopped_s(mine: Evidence, others: Others) -> float:
    return _throttled_s(mine) - _usual(others, _throttled_s)


def _in_line_s(mine: Evidence, others: Others) -> float:
    """Beyond what its own computing makes it stand there, where others compute, too."""
    return _queue_s(mine) - _cpu_s(mine) * _usual(others, _line)


def _computing_s(mine: Evidence, others: Others) -> float:
    """With the line that comes of it."""
    return (_cpu_s(mine) - _usual(others, _cpu_s)) * (1 + _usual(others, _line))


def _stopped(mine: Evidence, others: Others) -> str:
    usual = _usual(others, lambda each: each.machine.throttled)
    return f"its cgroup's CPU quota stops it {mine.machine.throttled:.0%} of the time, the others {usual:.0%}"


def _in_line(mine: Evidence, others: Others) -> str:
    usual = _usual(others, lambda each: each.machine.main_queue)
    said = f"it stands in line for a core {mine.machine.main_queue:.0%} of its time, the others {usual:.0%}"
    if mine.machine.others_cpu - _usual(others, lambda each: each.machine.others_cpu) < NOTICED:
        return said
    return f"{said}: processes that are not of this run use {mine.machine.others_cpu:.1f} cores of its machine"


def _computing(mine: Evidence, others: Others) -> str:
    own, usual = format_ms(_cpu_s(mine)), format_ms(_usual(others, _cpu_s))
    return f"it computes {own} a step and the others {usual}: it has more to do, or slower cores"


_CAUSES: tuple[tuple[Callable[[Evidence, Others], float], Callable[[Evidence, Others], str]], ...] = (
    (_stopped_s, _stopped),
    (_in_line_s, _in_line),
    (_computing_s, _computing),
)
"""What may take the time: how much more of a step than with the others, and how to say so."""


def _waiting(mine: Evidence, others: Others) -> str:
    """Neither computing nor in line: where its thread was seen more often than theirs."""
    said = "it does not compute more, and has its core: it waits for something"
    states = [state for state in mine.loop.thread_states if state != "running"]
    more = {state: _in_state(state, mine) - _usual(others, partial(_in_state, state)) for state in states}
    state = max(more, key=more.__getitem__, default="")
    return f"{said}, most often in {state}" if state and more[state] >= OFTEN else said


def _in_state(state: str, evidence: Evidence) -> float:
    return evidence.loop.thread_states.get(state, 0.0)


# -- of a step -----------------------------------------------------------------------------------------------------


def _cpu_s(evidence: Evidence) -> float:
    """That the training's own process computed, all its threads together."""
    looks = [each.cpu for look in evidence.machine.system for each in look.processes if each.worker is None]
    return mean(looks) * evidence.loop.cycle_s


def _queue_s(evidence: Evidence) -> float:
    return evidence.machine.main_queue * evidence.loop.cycle_s


def _throttled_s(evidence: Evidence) -> float:
    return evidence.machine.throttled * evidence.loop.cycle_s


def _line(evidence: Evidence) -> float:
    """Seconds in line for each second of computing."""
    cpu_s = _cpu_s(evidence)
    return _queue_s(evidence) / cpu_s if cpu_s > 0 else 0.0


def _usual(others: Others, value: Callable[[Evidence], float]) -> float:
    return float(median(value(each) for each in others))
