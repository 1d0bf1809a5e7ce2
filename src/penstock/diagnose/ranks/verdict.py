"""The diagnosis of several ranks of one run: which of them holds the others back, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from penstock.core.arrays import mean
from penstock.core.finding import Diagnosis, Impact, RankSummary, RankWait
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.impact import compute_impact
from penstock.diagnose.ranks.steps import CollectiveWaits, collective_waits, describe_slow_rank
from penstock.diagnose.ranks.waits import COST_MIN, RankWaits, rank_waits
from penstock.diagnose.verdict import diagnose
from penstock.recording.reader import Recording

SIMILAR = 0.1
"""Relative difference up to which batches take equally long to make."""
HEALTHY, HEALTHY_DATA = "Healthy:", "Its data is healthy:"
"""The beginning of a healthy verdict, and its replacement if the rank's own step holds the others back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStepTimes(RankWait):
    """The waits of a rank with the times of its steps, if their phases were recorded."""

    own_s: float
    """Mean seconds of a step outside `backward`, where ranks meet; waiting for data is a part of it."""
    met_s: float
    """Mean seconds of a step inside `backward`, most of them waiting for the last rank."""
    held_s: float
    """Seconds by which it held the others back, by its data or its step: how much later it was than the next to
    last."""


def diagnose_ranks(ranks: Sequence[Recording], model_error: float | None = None) -> tuple[Recording, Diagnosis]:
    """Return the rank that holds the others back or else waited most, and its diagnosis with the impact on all ranks.

    `model_error` is that of earlier predictions, for the intervals of gains.
    """
    waits, collective = rank_waits(ranks), collective_waits(ranks)
    waiting = _most_waiting(ranks, waits)
    slow = None if collective is None else collective.slow
    recording = waiting if slow is None else _slow_rank(ranks, slow)
    diagnosis = diagnose(recording, model_error)
    if waits is None:
        return recording, diagnosis
    own = diagnosis.impact if slow is None else compute_impact(waiting, gather(waiting))
    return recording, replace(
        diagnosis,
        sentence=diagnosis.sentence if slow is None else diagnosis.sentence.replace(HEALTHY, HEALTHY_DATA, 1),
        ranks=summarise_ranks(ranks, waits, collective),
        impact=own and _impact_on_all(own, waits),
    )


def most_waiting_rank(ranks: Sequence[Recording]) -> Recording:
    """Return the rank of a run that holds the others back by its data, or else waited most; its notes say so."""
    return _most_waiting(ranks, rank_waits(ranks))


def _most_waiting(ranks: Sequence[Recording], waits: RankWaits | None) -> Recording:
    if len(ranks) == 1:
        return ranks[0]
    waited = [sum(step.wait_s for step in rank.steps) for rank in ranks]
    holder = None if waits is None else waits.holder
    worst = max(range(len(ranks)), key=waited.__getitem__) if holder is None else holder
    why = "waited most" if holder is None else "holds the others back"
    waited_s = f"{waited[worst]:.1f} s of {len(ranks)} ranks' {sum(waited):.1f} s"
    return _with_note(ranks, worst, f"rank {ranks[worst].run.rank} {why}: it waited {waited_s}")


def _slow_rank(ranks: Sequence[Recording], row: int) -> Recording:
    number = ranks[row].run.rank
    return _with_note(ranks, row, f"rank {number} holds the others back by its own step: this diagnosis is about it")


def _with_note(ranks: Sequence[Recording], row: int, note: str) -> Recording:
    return replace(ranks[row], notes=(*ranks[0].notes, note))


def summarise_ranks(
    ranks: Sequence[Recording], waits: RankWaits, collective: CollectiveWaits | None = None
) -> RankSummary:
    """Return a sentence about the ranks together, and the numbers behind it."""
    holder, slow = waits.holder, None if collective is None else collective.slow
    if collective is not None and slow is not None:
        holder, sentence = slow, describe_slow_rank(ranks, collective, slow, waits.time_s)
    else:
        sentence = _without_holder(waits) if holder is None else _holder(ranks, waits, holder)
    return RankSummary(
        sentence=sentence,
        steps=waits.steps,
        exposed_s=waits.exposed_s,
        share=waits.exposed_s / waits.time_s if waits.time_s > 0 else 0.0,
        holder=None if holder is None else waits.ranks[holder],
        each=waits.each() if collective is None else _step_times(waits, collective),
    )


def _step_times(waits: RankWaits, collective: CollectiveWaits) -> tuple[RankStepTimes, ...]:
    return tuple(
        RankStepTimes(
            **asdict(wait),
            own_s=collective.own_s(row),
            met_s=float(collective.collective_s[row]),
            held_s=collective.cost_share(row) * waits.time_s,
        )
        for row, wait in enumerate(waits.each())
    )


def _impact_on_all(own: Impact, waits: RankWaits) -> Impact:
    """Return the impact of one rank scaled to all ranks: in every step the longest wait of any rank counts."""
    waited_s = max(own.waited_s, waits.exposed_s + waits.startups_s)
    if own.waited_s <= 0:
        return own
    factor = waited_s / own.waited_s
    return replace(
        own,
        waited_s=waited_s,
        share=min(1.0, own.share * factor),
        per_epoch_s=own.per_epoch_s and own.per_epoch_s * factor,
        gpu_hours=own.gpu_hours * factor,
    )


# -- sentences about the waits -----------------------------------------------------------------------------------------


def _without_holder(waits: RankWaits) -> str:
    longest_s = max(rank.waited_s for rank in waits.each())
    exposed = f"{format_ms(waits.exposed_s)} for data, {waits.exposed_s / max(waits.time_s, 1e-9):.0%} of the time"
    if waits.exposed_s - longest_s >= COST_MIN * waits.time_s:
        return (
            f"The {len(waits.ranks)} ranks hold each other back in turns: each step waits for its last rank, "
            f"together {exposed}; none of them waited more than {format_ms(longest_s)} itself."
        )
    return f"No rank holds the others back: all {len(waits.ranks)} together waited {exposed}."


def _holder(ranks: Sequence[Recording], waits: RankWaits, row: int) -> str:
    wait = waits.each()[row]
    return (
        f"Rank {wait.rank} holds the others back: it was the last to have its batch in {wait.last:.0%} of the steps, "
        f"which cost all {len(ranks)} ranks {format_ms(wait.alone_s)}, {wait.alone_s / waits.time_s:.0%} of the "
        f"time; {_why_data_is_late(ranks, row)}."
    )


def _why_data_is_late(ranks: Sequence[Recording], row: int) -> str:
    """Compare how long the parts of making a batch take on this rank and on the others."""
    evidence = gather(ranks[row])[0]
    others = [
        other
        for index, rank in enumerate(ranks)
        if index != row
        for other in gather(rank)
        if _is_same_loader(other, evidence)
    ]
    own, theirs = _making_s(evidence), [parts for parts in map(_making_s, others) if parts]
    if not own or not theirs:
        return "the reason is unknown: this loader does not show how its batches are made"
    typical = {part: median(parts.get(part, 0.0) for parts in theirs) for part in own}
    own_s, typical_s = sum(own.values()), sum(typical.values())
    if own_s <= (1 + SIMILAR) * typical_s:
        return _compare_workers(evidence, others)
    part = max(own, key=lambda name: own[name] - typical[name])
    took = f"a batch takes {format_ms(own_s)} to make there and {format_ms(typical_s)} elsewhere"
    return f"{took}, and most of the difference is {part}"


def _compare_workers(evidence: Evidence, others: Sequence[Evidence]) -> str:
    workers = evidence.settings.num_workers
    typical = round(median(each.settings.num_workers for each in others))
    if workers < typical:
        return f"its batches take no longer to make, but it has {workers} workers, the others {typical}"
    return "its batches take no longer to make than those of the others: check what else runs on its machine"


def _is_same_loader(one: Evidence, other: Evidence) -> bool:
    return (one.loader.loader, one.loader.name) == (other.loader.loader, other.loader.name)


def _making_s(evidence: Evidence) -> Mapping[str, float]:
    """Return the mean seconds of making a batch by activity; empty if that was not recorded."""
    workers = evidence.workers
    if len(workers.fetches):
        return {
            "computing": mean(workers.cpu_s),
            "waiting for a core": mean(workers.queue_s),
            "waiting for storage, the network or a lock": mean(workers.blocked_s),
        }
    lines = [line for line in evidence.recording.hops if line.loader == evidence.loader.loader]
    batches = len(evidence.loop.all_steps)
    if not lines or not batches:
        return {}
    activities = {"read": "reading", "decode": "decoding"}
    return {text: lines[-1].hops[hop][0] / batches for hop, text in activities.items() if hop in lines[-1].hops}
