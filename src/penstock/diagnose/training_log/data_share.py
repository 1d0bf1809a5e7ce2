"""A log of mean step times and data times: the share that is waiting, how it went, and what it cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from penstock.core.finding import Diagnosis, Finding, Impact
from penstock.core.format import format_percent, format_seconds
from penstock.diagnose.training_log import facts
from penstock.diagnose.training_log.candidate_causes import HEALTHY_SHARE, decisive_experiment, gain_of, look_alikes
from penstock.diagnose.training_log.facts import rate
from penstock.diagnose.training_log.log_settings import LogSettings
from penstock.diagnose.training_log.parsed_log import TrainingLog
from penstock.diagnose.training_log.periodicity import step_without_wait_s
from penstock.diagnose.training_log.spans import LogSpan, spans
from penstock.diagnose.training_log.trend import trend

SPIKE = 5.0
"""A wait of so many times the usual one, and of a step's own time at least, is a spike."""
UNCOVERED_SHARE = 0.2
"""Of the clock's time missing from the sum of the means: above it, they do not tell all."""
SURE = 0.9
"""Of no_overlap: with no workers, data time and step time add up by construction."""


def diagnose_shares(log: TrainingLog, told: LogSettings) -> Diagnosis | None:
    """None where no line has both times."""
    found = spans(log)
    time_s, wait_s = sum(span.time_s for span in found), sum(span.wait_s for span in found)
    batches = sum(span.batches for span in found)
    if time_s <= 0:
        return None
    evidence = (
        f"{format_seconds(wait_s / batches)} of the {format_seconds(time_s / batches)} a step takes in the mean, "
        f"over {batches} "
        "steps, are data time",
        f"{rate(batches / time_s, told.batch_size)}",
    )
    judged = _judge(found, evidence, told.workers)
    return replace(
        judged,
        impact=None if wait_s > time_s else _impact(log, time_s, wait_s, batches),
        notes=(
            *(() if judged.findings else evidence),
            *_went(found),
            *_spikes(log),
            *_starts(found),
            *_uncovered(log, found),
            *facts.bars(log, step_without_wait_s(log)),
        ),
    )


def _judge(found: Sequence[LogSpan], evidence: tuple[str, ...], named: tuple[int, ...]) -> Diagnosis:
    """By the share that is waiting."""
    times, waits = [span.time_s for span in found], [span.wait_s for span in found]
    share = sum(waits) / sum(times)
    if share > 1:
        return Diagnosis(
            verdict="undetermined",
            sentence="The log's data times are longer than its step times, which do not include the wait, then.",
            experiment="Give the time of the whole step, or run it under `penstock run`.",
        )
    sentence = f"{format_percent(share)} of the time is waited for data ({evidence[0]}; {evidence[1]})"
    if share < HEALTHY_SHARE:
        return Diagnosis(verdict="healthy", sentence=f"Healthy: {sentence}.")
    if named == (0,):
        return Diagnosis(
            verdict="findings",
            sentence=f"{sentence}: with num_workers=0 nothing is loaded while the step runs.",
            findings=(_no_overlap(sum(times), sum(waits), evidence),),
        )
    workers = named[0] if len(named) == 1 else None
    return Diagnosis(
        verdict="undetermined",
        sentence=f"{sentence}; the log cannot tell why.",
        findings=tuple(look_alikes(gain_of(times, waits), evidence, workers=workers)),
        experiment=decisive_experiment(workers),
    )


def _no_overlap(time_s: float, wait_s: float, evidence: tuple[str, ...]) -> Finding:
    gain = time_s / max(wait_s, time_s - wait_s) - 1
    return Finding(
        rule="no_overlap",
        gain=gain,
        gain_low=gain,
        gain_high=time_s / max(time_s - wait_s, time_s * 1e-3) - 1,
        confidence=SURE,
        summary="With num_workers=0 the main process loads each batch itself while the device idles.",
        evidence=evidence,
        advice="Set num_workers to 1 at least, so that loading and step overlap; more workers load faster, too.",
    )


def _went(found: Sequence[LogSpan]) -> list[str]:
    """Trend of the waits; the first stretch of an epoch has the workers' start in it."""
    steady = [span for span in found if not span.first]
    went = trend([span.wait_s / span.batches for span in steady])
    if went is None or went.kind == "steady":
        return []
    place = f", from step {steady[went.at].step} on" if went.kind == "changed" else ", bit by bit"
    return [f"the data time per step went from {format_seconds(went.before)} to {format_seconds(went.after)}{place}"]


def _spikes(log: TrainingLog) -> list[str]:
    """Lines that stand out; the first batch of an epoch always does."""
    waits = [(meter.step, meter.wait_s) for meter in log.meters if meter.wait_s is not None and meter.step]
    own_s = step_without_wait_s(log)
    if len(waits) < 2 or own_s is None:
        return []
    usual = median(wait for _, wait in waits)
    spikes = [(step, wait) for step, wait in waits if wait > max(SPIKE * usual, own_s)]
    if not spikes:
        return []
    step, wait = max(spikes, key=lambda spike: spike[1])
    return [
        f"{len(spikes)} of {len(waits)} lines show a spike of the data time, the longest {format_seconds(wait)} at "
        "step "
        f"{step}, where {format_seconds(usual)} is usual"
    ]


def _starts(found: Sequence[LogSpan]) -> list[str]:
    """An epoch's first batch alone: there the workers start."""
    starts = [span.wait_s for span in found if span.first and span.batches == 1]
    if not starts or max(starts) < 1:
        return []
    return [f"the first batch of an epoch is waited for {format_seconds(median(starts))}: the start of the workers"]


def _uncovered(log: TrainingLog, found: Sequence[LogSpan]) -> list[str]:
    """Means of a window may leave steps out; the clock does not."""
    stamps = [meter.at_s for meter in log.meters if meter.at_s is not None]
    if len(stamps) < 2 or len(stamps) != len(log.meters):
        return []
    elapsed = stamps[-1] - stamps[0]
    told_s = sum(span.time_s for span in found[1:])
    if elapsed <= 0 or told_s > (1 - UNCOVERED_SHARE) * elapsed:
        return []
    return [
        f"the step times add up to {format_seconds(told_s)} of the {format_seconds(elapsed)} between the first and "
        "the last line: "
        "the rest is outside the steps (evaluation, checkpoints) or in steps that the log's means leave out"
    ]


def _impact(log: TrainingLog, time_s: float, wait_s: float, batches: int) -> Impact:
    steps = log.steps_per_epoch
    return Impact(
        run_s=time_s,
        waited_s=wait_s,
        share=wait_s / time_s,
        per_epoch_s=None if steps is None else steps * wait_s / batches,
        gpu_hours=wait_s / 3600,
    )
