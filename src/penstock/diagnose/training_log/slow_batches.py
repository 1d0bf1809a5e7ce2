"""The diagnosis of a log that names its slow batches.

It answers whether the slow batches have a period, whether that is num_workers, what they cost, and which causes remain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.core.finding import Diagnosis, Finding, Impact, RejectedCause
from penstock.core.format import format_percent, format_seconds
from penstock.diagnose.training_log.candidate_causes import (
    EQUAL_CONFIDENCE,
    HEALTHY_SHARE,
    candidate_findings,
    decisive_experiment,
    gain_without_waits,
)
from penstock.diagnose.training_log.facts import (
    bar_clock_fact,
    common_worker_fact,
    describe_rate,
    excluded_lines_facts,
    label_fact,
    slow_batch_facts,
    steadiness_fact,
    step_time_fact,
    unused_statistics_fact,
)
from penstock.diagnose.training_log.parsed_log import LogSettings, TrainingLog
from penstock.diagnose.training_log.periodicity import (
    GAPS_MIN,
    LogThroughput,
    Periodicity,
    find_periodicity,
    measure_throughput,
)
from penstock.diagnose.training_log.trend import Trend, find_trend

OTHER_WAITS_SHARE = 0.1
"""If more than this share of an interval was waited for batches other than the slow one, more than one worker was
late."""
OTHER_WAITS_MIN_INTERVALS = 0.5
"""If this share of the intervals has such waits, a lagging worker is less likely."""
LESS_LIKELY_CONFIDENCE = 0.2
"""Confidence in a lagging worker in that case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowBatchCase:
    """A log with slow batches, and what was computed from it once."""

    log: TrainingLog
    settings: LogSettings
    periodicity: Periodicity
    throughput: LogThroughput | None
    trend: Trend | None
    """Trend of the time per batch; None without timestamps."""

    @property
    def slow_batch_facts(self) -> tuple[str, ...]:
        """The facts that are the evidence of every candidate."""
        return slow_batch_facts(self.periodicity, self.throughput, self.settings.batch_size)


def diagnose_slow_batches(log: TrainingLog, settings: LogSettings) -> Diagnosis | None:
    """Return the diagnosis; None for a log in which no slow batch follows another."""
    if not log.slow:
        return None
    periodicity = find_periodicity(log.slow, settings.workers)
    if not periodicity.intervals:
        return None
    throughput = measure_throughput(periodicity, log.step_without_wait_s)
    timed = throughput is not None and not throughput.estimated
    case = SlowBatchCase(
        log=log,
        settings=settings,
        periodicity=periodicity,
        throughput=throughput,
        trend=find_trend(throughput.seconds_per_batch) if throughput is not None and timed else None,
    )
    if throughput is not None and throughput.lost_share < HEALTHY_SHARE:
        return _healthy(case, throughput)
    if periodicity.period is not None and (not settings.workers or periodicity.period in settings.workers):
        return _shortfall_of_workers(case, periodicity.period)
    return _irregular(case)


def _healthy(case: SlowBatchCase, throughput: LogThroughput) -> Diagnosis:
    return Diagnosis(
        verdict="healthy",
        sentence=f"{len(case.periodicity.slow)} slow batches cost {format_percent(throughput.lost_share)} of the time: "
        f"{describe_rate(throughput.batches_per_s, case.settings.batch_size)}, and no data advice.",
        impact=_impact(case),
        notes=_notes(case),
    )


def _shortfall_of_workers(case: SlowBatchCase, period: int) -> Diagnosis:
    """Return the diagnosis where the period is num_workers, or num_workers is unknown and assumed to be the period."""
    meaning = f"period {period} = num_workers"
    if not case.settings.workers:
        meaning = f"period {period}, which suggests {period} workers"
    return Diagnosis(
        verdict="undetermined",
        sentence=f"{_adjective(case.trend)} supply shortfall with {meaning}: {_cost(case)}; shared storage, slow "
        "workers or one lagging worker: this log does not show which.",
        findings=_candidates(case, period),
        rejected=_rejected(case, period),
        experiment=decisive_experiment(period),
        impact=_impact(case),
        notes=_notes(case),
    )


def _irregular(case: SlowBatchCase) -> Diagnosis:
    """Return the diagnosis where the slow batches have no period, or one that is not num_workers."""
    pattern = _describe_pattern(case.periodicity, case.settings.workers)
    return Diagnosis(
        verdict="undetermined",
        sentence=f"{pattern[0].upper()}{pattern[1:]}: {_cost(case)}; the log does not show why.",
        experiment="Run it under `penstock run`: it shows which worker is awaited at each stall, and what it does.",
        impact=_impact(case),
        notes=(*case.slow_batch_facts, *_notes(case)),
    )


def _describe_pattern(found: Periodicity, workers: tuple[int, ...]) -> str:
    period = found.period
    gaps = [interval.batches for interval in found.intervals]
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


def _candidates(case: SlowBatchCase, period: int) -> tuple[Finding, ...]:
    """Return the three candidate causes; none if the throughput is unknown, because then the gain is unknown too."""
    if case.throughput is None:
        return ()
    intervals = case.throughput.intervals
    gain = gain_without_waits(
        [interval.seconds or 0.0 for interval in intervals], [interval.lost_s for interval in intervals]
    )
    with_other_waits = _intervals_with_other_waits(case)
    less_likely = with_other_waits >= OTHER_WAITS_MIN_INTERVALS * len(intervals)
    findings = candidate_findings(
        gain,
        case.slow_batch_facts,
        workers=period,
        lagging_confidence=LESS_LIKELY_CONFIDENCE if less_likely else EQUAL_CONFIDENCE,
    )
    on_lagging = common_worker_fact(case.periodicity.slow, period)
    if with_other_waits:
        on_lagging.append(
            f"in {with_other_waits} of {len(intervals)} periods more than {format_percent(OTHER_WAITS_SHARE)} of the "
            "time was waited for other batches than the slow one, which speaks against a single lagging worker there"
        )
    return tuple(
        replace(finding, evidence=(*finding.evidence, *on_lagging)) if finding.rule == "lagging_worker" else finding
        for finding in findings
    )


def _intervals_with_other_waits(case: SlowBatchCase) -> int:
    """Return the number of intervals in which more than OTHER_WAITS_SHARE was waited for other batches."""
    step_s = case.log.step_without_wait_s
    if case.throughput is None or step_s is None or case.throughput.estimated:
        return 0
    return sum(
        (interval.seconds or 0.0) - interval.lost_s - interval.batches * step_s
        > OTHER_WAITS_SHARE * (interval.seconds or 0.0)
        for interval in case.throughput.intervals
    )


def _rejected(case: SlowBatchCase, period: int) -> tuple[RejectedCause, ...]:
    factor = case.settings.prefetch_factor
    tasks = (
        f"the {period * factor} tasks outstanding ({period} × prefetch_factor {factor}) are mostly not started"
        if factor is not None
        else "num_workers × prefetch_factor counts tasks outstanding, most of them not started"
    )
    rate = ""
    if case.throughput is not None:
        rate = f" = {period} / {format_seconds(case.throughput.elapsed_s / case.throughput.batches * period)}"
    return (
        RejectedCause(
            rule="prefetch_factor",
            why="a larger prefetch factor cannot help: the rate is workers / seconds per batch of a worker"
            f"{rate}, whatever the prefetch factor is; {tasks}",
        ),
        RejectedCause(
            rule="straggler_samples",
            why=f"samples that are slow by chance would not come every {period} batches",
        ),
    )


def _adjective(trend: Trend | None) -> str:
    if trend is None:
        return "A"
    if trend.kind == "steady":
        return "A steady"
    return "A growing" if trend.after > trend.before else "A shrinking"


def _cost(case: SlowBatchCase) -> str:
    throughput = case.throughput
    if throughput is None:
        intervals = case.periodicity.intervals
        lost_s = sum(interval.lost_s for interval in intervals)
        return f"{format_seconds(lost_s)} lost in {len(intervals)} slow batches, at a rate that the log does not say"
    about = "about " if throughput.estimated else ""
    return (
        f"{about}{describe_rate(throughput.batches_per_s, case.settings.batch_size)} in the mean and "
        f"{about}{format_percent(throughput.lost_share)} of the time lost"
    )


def _impact(case: SlowBatchCase) -> Impact | None:
    throughput, steps = case.throughput, case.log.steps_per_epoch
    if throughput is None:
        return None
    return Impact(
        run_s=throughput.elapsed_s,
        waited_s=throughput.lost_s,
        share=throughput.lost_share,
        per_epoch_s=None if steps is None else steps * throughput.lost_s / throughput.batches,
        gpu_hours=throughput.lost_s / 3600,
    )


def _notes(case: SlowBatchCase) -> tuple[str, ...]:
    return (
        *steadiness_fact(case.throughput, case.trend),
        *step_time_fact(case.log, case.throughput),
        *unused_statistics_fact(case.log, case.periodicity.period),
        *bar_clock_fact(case.log),
        *label_fact(case.log),
        *excluded_lines_facts(case.periodicity),
    )
