"""A log that names its slow batches: is there a period, is it num_workers, what does it cost, what is left open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from penstock.core.finding import Diagnosis, Finding, Impact, RejectedCause
from penstock.core.format import format_percent, format_seconds
from penstock.diagnose.training_log import facts
from penstock.diagnose.training_log.candidate_causes import ALIKE, HEALTHY_SHARE, decisive_experiment, look_alikes
from penstock.diagnose.training_log.facts import rate
from penstock.diagnose.training_log.log_settings import LogSettings
from penstock.diagnose.training_log.parsed_log import TrainingLog
from penstock.diagnose.training_log.periodicity import (
    GAPS_MIN,
    LogRate,
    Periodicity,
    find_periodicity,
    log_rate,
    step_without_wait_s,
)
from penstock.diagnose.training_log.trend import Trend, trend
from penstock.errors import printable

SPREAD_SHARE = 0.1
"""Of a beat's time waited for other batches than the slow one: above it, more than one worker was late."""
LAGGING_LESS = 0.2
"""Confidence in a lagging worker where most beats were such."""
MOST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StallCase:
    """All that is looked at, gathered once."""

    log: TrainingLog
    told: LogSettings
    found: Periodicity
    log_rate: LogRate | None
    step_s: float | None
    trend: Trend | None


def diagnose_stalls(log: TrainingLog, told: LogSettings) -> Diagnosis | None:
    """None where fewer than two slow batches follow one another."""
    if not log.slow:
        return None
    found = find_periodicity(log.slow, told.workers)
    if not found.beats:
        return None
    step_s = step_without_wait_s(log)
    speed = log_rate(found, step_s)
    went = trend(speed.per_batch_s) if speed is not None and not speed.estimated else None
    case = StallCase(log=log, told=told, found=found, log_rate=speed, step_s=step_s, trend=went)
    if speed is not None and speed.share < HEALTHY_SHARE:
        return _healthy(case, speed)
    if found.period is not None and (not told.workers or found.period in told.workers):
        return _shortfall(case, found.period)
    return _open(case)


def _healthy(case: StallCase, speed: LogRate) -> Diagnosis:
    return Diagnosis(
        verdict="healthy",
        sentence=f"{len(case.found.slow)} slow batches cost {format_percent(speed.share)} of the time: "
        f"{rate(speed.rate, case.told.batch_size)}, and no data advice.",
        impact=_impact(case),
        notes=_notes(case),
    )


def _shortfall(case: StallCase, period: int) -> Diagnosis:
    """The period is num_workers, or what num_workers is taken to be."""
    meaning = (
        f"period {period} = num_workers" if case.told.workers else f"period {period}, which suggests {period} workers"
    )
    sentence = f"{_manner(case)} supply shortfall with {meaning}: {_cost(case)}"
    return Diagnosis(
        verdict="undetermined",
        sentence=f"{sentence}; shared storage, slow workers or one lagging worker: this log cannot tell which.",
        findings=_candidates(case, period),
        rejected=_rejected(case, period),
        experiment=decisive_experiment(period),
        impact=_impact(case),
        notes=_notes(case),
    )


def _open(case: StallCase) -> Diagnosis:
    """Slow batches without a period, or with one that is not num_workers."""
    what = _irregularity(case.found, case.told.workers)
    return Diagnosis(
        verdict="undetermined",
        sentence=f"{what[0].upper()}{what[1:]}: {_cost(case)}; the log cannot tell why.",
        experiment="Run it under `penstock run`: it shows which worker is awaited at each stall, and what it does.",
        impact=_impact(case),
        notes=(*facts.stalls(case.found, case.log_rate, case.told.batch_size), *_notes(case)),
    )


def _irregularity(found: Periodicity, workers: tuple[int, ...]) -> str:
    """How they come, in words."""
    period = found.period
    gaps = [beat.batches for beat in found.beats]
    if period is None and len(gaps) < GAPS_MIN:
        return f"{len(found.slow)} slow batches are too few to see a period"
    if period is None and max(gaps) == 1:
        return "one batch after the other is slow"
    if period is None:
        return f"slow batches come without a period ({min(gaps)} to {max(gaps)} batches apart)"
    divisor = max((number for number in workers if number and period % number == 0), default=None)
    if divisor is None:
        named = " or ".join(map(str, workers))
        return f"slow batches come every {period} batches, which is not num_workers ({named}): something else does"
    times = period // divisor
    return (
        f"slow batches come every {period} batches = {times} × num_workers: each worker is slow once in {times} of its "
        "batches, as when it opens its next shard"
    )


def _candidates(case: StallCase, period: int) -> tuple[Finding, ...]:
    """None without a rate: then there is no gain to name."""
    if case.log_rate is None:
        return ()
    gain = case.log_rate.gain()
    evidence = facts.stalls(case.found, case.log_rate, case.told.batch_size)
    late = _spread_beats(case)
    lagging = ALIKE if late < MOST * len(case.log_rate.beats) else LAGGING_LESS
    findings = look_alikes(gain, evidence, workers=period, lagging=lagging)
    about_one = facts.turn(case.found.slow, period)
    if late:
        about_one.append(
            f"in {late} of {len(case.log_rate.beats)} periods more than {format_percent(SPREAD_SHARE)} of the time "
            "was waited for "
            "other batches than the slow one, which speaks against a single lagging worker there"
        )
    return tuple(
        replace(finding, evidence=(*finding.evidence, *about_one)) if finding.rule == "lagging_worker" else finding
        for finding in findings
    )


def _spread_beats(case: StallCase) -> int:
    if case.log_rate is None or case.step_s is None or case.log_rate.estimated:
        return 0
    return sum(
        (beat.seconds or 0.0) - beat.lost_s - beat.batches * case.step_s > SPREAD_SHARE * (beat.seconds or 0.0)
        for beat in case.log_rate.beats
    )


def _rejected(case: StallCase, period: int) -> tuple[RejectedCause, ...]:
    factor = case.told.prefetch_factor
    tasks = (
        f"the {period * factor} tasks outstanding ({period} × prefetch_factor {factor}) are mostly not started"
        if factor is not None
        else "num_workers × prefetch_factor counts tasks outstanding, most of them not started"
    )
    per_batch = ""
    if case.log_rate is not None:
        per_batch = f" = {period} / {format_seconds(case.log_rate.elapsed_s / case.log_rate.batches * period)}"
    return (
        RejectedCause(
            rule="prefetch_factor",
            why="a larger prefetch factor cannot help: the rate is workers / seconds per batch of a worker"
            f"{per_batch}, whatever the prefetch factor is; {tasks}",
        ),
        RejectedCause(
            rule="straggler_samples",
            why=f"samples that are slow by chance would not come every {period} batches",
        ),
    )


def _manner(case: StallCase) -> str:
    if case.trend is None:
        return "A"
    if case.trend.kind == "steady":
        return "A steady"
    return "A growing" if case.trend.after > case.trend.before else "A shrinking"


def _cost(case: StallCase) -> str:
    if case.log_rate is None:
        lost = sum(beat.lost_s for beat in case.found.beats)
        return (
            f"{format_seconds(lost)} lost in {len(case.found.beats)} slow batches, at a rate that the log does not say"
        )
    about = "about " if case.log_rate.estimated else ""
    return (
        f"{about}{rate(case.log_rate.rate, case.told.batch_size)} in the mean and "
        f"{about}{format_percent(case.log_rate.share)} of the "
        "time lost"
    )


def _impact(case: StallCase) -> Impact | None:
    if case.log_rate is None:
        return None
    steps = case.log.steps_per_epoch
    return Impact(
        run_s=case.log_rate.elapsed_s,
        waited_s=case.log_rate.lost_s,
        share=case.log_rate.share,
        per_epoch_s=None if steps is None else steps * case.log_rate.lost_s / case.log_rate.batches,
        gpu_hours=case.log_rate.lost_s / 3600,
    )


def _notes(case: StallCase) -> tuple[str, ...]:
    found = case.found
    notes = [
        *facts.manner(case.log_rate, case.trend),
        *facts.step(case.log, case.step_s, case.log_rate),
        *facts.windows(case.log, found.period),
        *facts.bars(case.log, case.step_s),
    ]
    labels = Counter(printable(batch.label) for batch in case.log.slow if batch.label)
    if labels:
        words = ", ".join(f"{label!r} ({number} lines)" for label, number in labels.most_common(5))
        notes.append(f"{words}: names that the log's author gave, not measurements, so not taken as evidence")
    if found.doubled:
        notes.append(f"{found.doubled} lines name a slow batch once more (other ranks, or a second handler): left out")
    if found.disagreeing:
        notes.append(f"between {found.disagreeing} pairs of slow batches the stamps leave less time than was waited")
    return tuple(notes)
