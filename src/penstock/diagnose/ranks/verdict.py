"""The ranks of one run, judged together: which of them holds the others back, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from penstock.core.arrays import mean
from penstock.core.finding import Diagnosis, Impact, RankSummary, RankWait
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.impact import compute_impact
from penstock.diagnose.ranks.collectives import CollectiveWaits, collective_waits
from penstock.diagnose.ranks.rank_skew import HOLDS
from penstock.diagnose.ranks.slow_step import find_slow_steps
from penstock.diagnose.ranks.waits import RankWaits, rank_waits
from penstock.diagnose.verdict import diagnose
from penstock.recording.reader import Recording

ALIKE = 0.1
"""Batches whose making differs by less take equally long."""
HEALTHY, HEALTHY_DATA = "Healthy:", "Its data is healthy:"
"""How a rank's own verdict begins, and how where its step holds the others back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPace(RankWait):
    """The same with its steps, where their phases were recorded."""

    own_s: float
    """Of a step, outside of `backward`, where ranks meet; waiting for data is part of it."""
    met_s: float
    """Of a step, in there, most of it waiting for the last rank."""
    held_s: float
    """What it held the others back, by data or step: its coming later than the next to last."""


def diagnose_ranks(ranks: Sequence[Recording]) -> tuple[Recording, Diagnosis]:
    """The rank that holds the others back, or waits most, and its diagnosis; what waiting costs is that of all."""
    waiting, waits, meetings = most_waiting_rank(ranks), rank_waits(ranks), collective_waits(ranks)
    slow = None if meetings is None else meetings.slow
    recording = waiting if slow is None else _noted(ranks, slow)
    diagnosis = diagnose(recording)
    if waits is None:
        return recording, diagnosis
    own = diagnosis.impact if slow is None else compute_impact(waiting, gather(waiting))
    impact = own and _impact(own, waits)
    return recording, replace(
        diagnosis,
        sentence=diagnosis.sentence if slow is None else diagnosis.sentence.replace(HEALTHY, HEALTHY_DATA, 1),
        ranks=among(ranks, waits, meetings),
        impact=impact,
    )


def among(ranks: Sequence[Recording], waits: RankWaits, meetings: CollectiveWaits | None = None) -> RankSummary:
    """In one sentence, and the numbers behind it."""
    holder, slow = waits.holder, None if meetings is None else meetings.slow
    if meetings is not None and slow is not None:
        holder, sentence = slow, find_slow_steps(ranks, meetings, slow, waits.time_s)
    else:
        sentence = _in_common(waits) if holder is None else _holding(ranks, waits, holder)
    return RankSummary(
        sentence=sentence,
        steps=waits.steps,
        exposed_s=waits.exposed_s,
        share=waits.exposed_s / waits.time_s if waits.time_s > 0 else 0.0,
        holder=None if holder is None else waits.ranks[holder],
        each=waits.each() if meetings is None else _paces(waits, meetings),
    )


def most_waiting_rank(ranks: Sequence[Recording]) -> Recording:
    """Return the rank of a run that holds the others back, or else waited most; its notes say so."""
    if len(ranks) == 1:
        return ranks[0]
    waited = [sum(step.wait_s for step in rank.steps) for rank in ranks]
    waits = rank_waits(ranks)
    holder = None if waits is None else waits.holder
    worst = max(range(len(ranks)), key=waited.__getitem__) if holder is None else holder
    why = "waited most" if holder is None else "holds the others back"
    waited_s = f"{waited[worst]:.1f} s of {len(ranks)} ranks' {sum(waited):.1f} s"
    note = f"rank {ranks[worst].run.rank} {why}: it waited {waited_s}"
    return replace(ranks[worst], notes=(*ranks[0].notes, note))


def _noted(ranks: Sequence[Recording], slow: int) -> Recording:
    told = f"rank {ranks[slow].run.rank} holds the others back by its own step: what is said here is of it"
    return replace(ranks[slow], notes=(*ranks[0].notes, told))


def _paces(waits: RankWaits, meetings: CollectiveWaits) -> tuple[RankPace, ...]:
    return tuple(
        RankPace(
            **asdict(wait),
            own_s=meetings.own_s(row),
            met_s=float(meetings.met_s[row]),
            held_s=meetings.held(row) * waits.time_s,
        )
        for row, wait in enumerate(waits.each())
    )


def _impact(own: Impact, waits: RankWaits) -> Impact:
    """Of one rank, as it is for all: in every step the longest wait counts."""
    waited_s = max(own.waited_s, waits.exposed_s + waits.startups_s)
    if own.waited_s <= 0:
        return own
    more = waited_s / own.waited_s
    return replace(
        own,
        waited_s=waited_s,
        share=min(1.0, own.share * more),
        per_epoch_s=own.per_epoch_s and own.per_epoch_s * more,
        gpu_hours=own.gpu_hours * more,
    )


def _in_common(waits: RankWaits) -> str:
    longest_s = max(rank.waited_s for rank in waits.each())
    exposed = f"{format_ms(waits.exposed_s)} for data, {waits.exposed_s / max(waits.time_s, 1e-9):.0%} of the time"
    if waits.exposed_s - longest_s >= HOLDS * waits.time_s:
        return (
            f"The {len(waits.ranks)} ranks hold each other back in turns: each step waits for its last rank, "
            f"together {exposed}; none of them waited more than {format_ms(longest_s)} itself."
        )
    return f"No rank holds the others back: all {len(waits.ranks)} together waited {exposed}."


def _holding(ranks: Sequence[Recording], waits: RankWaits, row: int) -> str:
    told = waits.each()[row]
    return (
        f"Rank {told.rank} holds the others back: it was the last to have its batch in {told.last:.0%} of the steps, "
        f"which cost all {len(ranks)} ranks {format_ms(told.alone_s)}, {told.alone_s / waits.time_s:.0%} of the "
        f"time; {_why(ranks, row)}."
    )


def _why(ranks: Sequence[Recording], row: int) -> str:
    """From what the making of a batch took there and elsewhere, by its parts."""
    held = gather(ranks[row])[0]
    others = [e for at, rank in enumerate(ranks) if at != row for e in gather(rank) if _same_loader(e, held)]
    mine, theirs = _making(held), [made for made in map(_making, others) if made]
    if not mine or not theirs:
        return "why is not known: this loader does not show how its batches are made"
    usual = {part: median(made.get(part, 0.0) for made in theirs) for part in mine}
    own_s, usual_s = sum(mine.values()), sum(usual.values())
    if own_s <= (1 + ALIKE) * usual_s:
        return _with_as_many_workers(held, others)
    part = max(mine, key=lambda name: mine[name] - usual[name])
    took = f"a batch takes {format_ms(own_s)} to make there and {format_ms(usual_s)} elsewhere"
    return f"{took}, and most of the difference is {part}"


def _with_as_many_workers(held: Evidence, others: Sequence[Evidence]) -> str:
    usual = round(median(each.settings.num_workers for each in others))
    if held.settings.num_workers < usual:
        return f"its batches take no longer to make, but it has {held.settings.num_workers} workers, the others {usual}"
    return "its batches take no longer to make than those of the others: look at what else runs on its machine"


def _same_loader(one: Evidence, other: Evidence) -> bool:
    return (one.loader.loader, one.loader.name) == (other.loader.loader, other.loader.name)


def _making(evidence: Evidence) -> Mapping[str, float]:
    """Seconds of a batch by what its makers did; empty where nobody saw them."""
    if len(evidence.workers.fetches):
        return {
            "computing": mean(evidence.workers.cpu_s),
            "standing in line for a core": mean(evidence.workers.queue_s),
            "waiting for storage, the network or a lock": mean(evidence.workers.blocked_s),
        }
    lines = [line for line in evidence.recording.hops if line.loader == evidence.loader.loader]
    batches = len(evidence.loop.steps) + len(evidence.loop.first_steps)
    if not lines or not batches:
        return {}
    named = {"read": "reading", "decode": "decoding"}
    return {words: lines[-1].hops[hop][0] / batches for hop, words in named.items() if hop in lines[-1].hops}
