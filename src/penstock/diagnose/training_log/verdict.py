"""`diagnose_log`: what a plain training log proves, what it leaves open, and the experiment that would decide.

A log that names its slow batches shows most (`slow_batches.py`). Mean step times and data times show the share of
waiting, but no cause. A log of rates alone shows neither. They are tried in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.core.finding import Diagnosis, Finding, Impact
from penstock.core.format import format_percent, format_seconds
from penstock.diagnose.training_log.candidate_causes import (
    HEALTHY_SHARE,
    MIN_STEP_SHARE,
    candidate_findings,
    decisive_experiment,
    gain_without_waits,
)
from penstock.diagnose.training_log.facts import (
    bar_clock_fact,
    bar_rate_facts,
    data_time_change_fact,
    data_time_spikes_fact,
    describe_rate,
    summary_facts,
    uncovered_time_fact,
    worker_start_fact,
)
from penstock.diagnose.training_log.parsed_log import LogSettings, TrainingLog, resolve_settings
from penstock.diagnose.training_log.slow_batches import diagnose_slow_batches
from penstock.diagnose.training_log.spans import LogSpan, find_spans

NO_OVERLAP_CONFIDENCE = 0.9
"""Confidence in `no_overlap` for num_workers=0: data time and step time add up by construction then."""


def diagnose_log(log: TrainingLog, workers: int | None = None, batch_size: int | None = None) -> Diagnosis:
    """Return the diagnosis of a log.

    `workers` and `batch_size` are the num_workers and the batch size of the run, for a log that does not name them, or
    names wrong ones.
    """
    settings = resolve_settings(log, workers, batch_size)
    diagnosis = (
        diagnose_slow_batches(log, settings) or _diagnose_data_times(log, settings) or _diagnose_rate(log, settings)
    )
    formats = ", ".join(f"{number:,} of {name}" for name, number in log.recognised.items())
    counts = f"{sum(log.recognised.values()):,} of the log's {log.lines:,} lines were recognised: {formats}"
    return replace(diagnosis, notes=(*diagnosis.notes, *settings.notes, counts, *log.notes))


# -- step times and data times -------------------------------------------------------------------------------------


def _diagnose_data_times(log: TrainingLog, settings: LogSettings) -> Diagnosis | None:
    """Return the diagnosis by the share of data time; None for a log without a line that has both times."""
    spans = find_spans(log)
    time_s, wait_s = sum(span.time_s for span in spans), sum(span.wait_s for span in spans)
    batches = sum(span.batches for span in spans)
    if time_s <= 0:
        return None
    evidence = (
        f"{format_seconds(wait_s / batches)} of the {format_seconds(time_s / batches)} a step takes in the mean, "
        f"over {batches} steps, are data time",
        describe_rate(batches / time_s, settings.batch_size),
    )
    diagnosis = _judge_data_share(spans, evidence, settings.workers)
    return replace(
        diagnosis,
        impact=None if wait_s > time_s else _impact(log, time_s, wait_s, batches),
        notes=(
            *(() if diagnosis.findings else evidence),
            *data_time_change_fact(spans),
            *data_time_spikes_fact(log),
            *worker_start_fact(spans),
            *uncovered_time_fact(log, spans),
            *bar_clock_fact(log),
        ),
    )


def _judge_data_share(spans: Sequence[LogSpan], evidence: tuple[str, ...], num_workers: tuple[int, ...]) -> Diagnosis:
    """Return the verdict by the share of the time that is data time; `num_workers` are the values the log names."""
    times, waits = [span.time_s for span in spans], [span.wait_s for span in spans]
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
    if num_workers == (0,):
        return Diagnosis(
            verdict="findings",
            sentence=f"{sentence}: with num_workers=0 nothing is loaded while the step runs.",
            findings=(_no_overlap(sum(times), sum(waits), evidence),),
        )
    workers = num_workers[0] if len(num_workers) == 1 else None
    return Diagnosis(
        verdict="undetermined",
        sentence=f"{sentence}; the log does not show why.",
        findings=tuple(candidate_findings(gain_without_waits(times, waits), evidence, workers=workers)),
        experiment=decisive_experiment(workers),
    )


def _no_overlap(time_s: float, wait_s: float, evidence: tuple[str, ...]) -> Finding:
    gain = time_s / max(wait_s, time_s - wait_s) - 1
    return Finding(
        rule="no_overlap",
        gain=gain,
        gain_low=gain,
        gain_high=time_s / max(time_s - wait_s, time_s * MIN_STEP_SHARE) - 1,
        confidence=NO_OVERLAP_CONFIDENCE,
        summary="With num_workers=0 the main process loads each batch itself while the device idles.",
        evidence=evidence,
        advice="Set num_workers to 1 at least, so that loading and step overlap; more workers load faster, too.",
    )


def _impact(log: TrainingLog, time_s: float, wait_s: float, batches: int) -> Impact:
    steps = log.steps_per_epoch
    return Impact(
        run_s=time_s,
        waited_s=wait_s,
        share=wait_s / time_s,
        per_epoch_s=None if steps is None else steps * wait_s / batches,
        gpu_hours=wait_s / 3600,
    )


# -- rates alone ---------------------------------------------------------------------------------------------------


def _diagnose_rate(log: TrainingLog, settings: LogSettings) -> Diagnosis:
    """Return the diagnosis of a log in which no line separates the wait from the step."""
    facts = [*bar_rate_facts(log.bars, settings.batch_size), *summary_facts(log)]
    if log.slow:
        facts.append(f"one batch is called slow: #{log.slow[0].number}, {format_seconds(log.slow[0].seconds)}")
    known = f" ({facts[0]})" if facts else ""
    return Diagnosis(
        verdict="undetermined",
        sentence=f"The log does not say how long the loop waited for data{known}.",
        experiment="Run it under `penstock run`: it separates the wait from the step, step by step.",
        notes=tuple(facts),
    )
