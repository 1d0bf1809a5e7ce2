"""The facts that a log shows, as sentences with numbers. They are evidence and notes; the verdict is made elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, median

from penstock.core.format import format_percent, format_seconds
from penstock.diagnose.training_log.parsed_log import ProgressBar, SlowBatch, TrainingLog
from penstock.diagnose.training_log.periodicity import LogThroughput, Periodicity
from penstock.diagnose.training_log.spans import LogSpan
from penstock.diagnose.training_log.trend import Trend, find_trend
from penstock.errors import printable

SPIKE_FACTOR = 5.0
"""A wait is a spike if it is longer than this multiple of the median wait, and longer than a step itself."""
UNCOVERED_SHARE = 0.2
"""If more than this share of the elapsed time is missing from the sum of the step times, that is noted."""
WORKER_START_S = 1.0
"""Shorter waits for the first batch of an epoch are not noted."""
BAR_SECONDS_MIN = 10.0
"""Seconds between two progress bars that are compared: a bar's clock shows whole seconds."""
LABELS_SHOWN = 5


def describe_rate(batches_per_s: float, batch_size: int | None) -> str:
    """Return the batches per second, and the samples per second if the batch size is known."""
    text = f"{batches_per_s:.3g} batches/s"
    return text if batch_size is None else f"{text} ({batches_per_s * batch_size:.3g} samples/s at batch {batch_size})"


def describe_change(quantity: str, trend: Trend, position: str) -> str:
    """Return the sentence on a series of seconds that changed at `position`, or drifted."""
    course = f"from {position} on" if trend.kind == "changed" else "gradually"
    return f"the {quantity} went from {format_seconds(trend.before)} to {format_seconds(trend.after)}, {course}"


# -- slow batches --------------------------------------------------------------------------------------------------


def slow_batch_facts(found: Periodicity, throughput: LogThroughput | None, batch_size: int | None) -> tuple[str, ...]:
    """Return the facts on the slow batches, the rate over whole periods, and the time that was lost."""
    intervals = found.intervals
    waits = [batch.seconds for batch in found.slow]
    facts = [
        f"{len(waits)} slow batches, #{found.slow[0].number} to #{found.slow[-1].number}, of "
        f"{format_seconds(min(waits))} to {format_seconds(max(waits))}"
    ]
    if found.period is not None and all(interval.batches == found.period for interval in intervals):
        facts.append(f"each of the {len(intervals)} gaps between them is {found.period} batches")
    elif found.period is not None:
        facts.append(
            f"{found.multiples} of the {len(intervals)} gaps between them are {found.period} batches or a multiple"
        )
    if throughput is not None:
        method = "estimated, without timestamps" if throughput.estimated else "by the timestamps of their lines"
        periods = f", {throughput.batches / found.period:.3g} periods" if found.period else ""
        facts.append(
            f"{throughput.batches} batches in {throughput.elapsed_s:.1f} s ({method}){periods}: "
            f"{describe_rate(throughput.batches_per_s, batch_size)}"
        )
        facts.append(
            f"{throughput.lost_s:.1f} s of these, {format_percent(throughput.lost_share)}, were waited in slow batches"
        )
    return tuple(facts)


def common_worker_fact(slow: Sequence[SlowBatch], period: int) -> list[str]:
    """Return the fact that all slow batches belong to one worker, if they do."""
    workers = {batch.number % period for batch in slow}
    if len(workers) > 1:
        return []
    return [
        f"every slow batch is one of worker {workers.pop()}'s, if the log counts batches from 0 (number mod {period})"
    ]


def steadiness_fact(throughput: LogThroughput | None, trend: Trend | None) -> list[str]:
    """Return the fact on how the time per batch developed from slow batch to slow batch."""
    if throughput is None or trend is None:
        return []
    seconds = throughput.seconds_per_batch
    if trend.kind == "steady":
        return [
            f"from slow batch to slow batch it takes {format_seconds(mean(seconds))} per batch, "
            f"{format_seconds(min(seconds))} to {format_seconds(max(seconds))}: steady"
        ]
    return [describe_change("time per batch", trend, f"batch #{throughput.intervals[trend.at].number}")]


def step_time_fact(log: TrainingLog, throughput: LogThroughput | None) -> list[str]:
    """Return the fact on the time of a step without the wait, and on the rate that it would allow."""
    step_s = log.step_without_wait_s
    if not step_s:
        return []
    named = next((bar.phases for bar in reversed(log.bars) if bar.phases), ())
    parts = " + ".join(f"{printable(name)} {format_seconds(seconds)}" for name, seconds in named)
    fact = f"a step takes {format_seconds(step_s)} by itself{f' ({parts})' if parts else ''}"
    if throughput is None:
        return [fact]
    return [
        f"{fact}: {1 / step_s:.3g} batches/s if data were always there, "
        f"{1 / step_s / throughput.batches_per_s:.2g} times as many"
    ]


def unused_statistics_fact(log: TrainingLog, period: int | None) -> list[str]:
    """Return the reason why the log's own means are not used: their windows do not hold whole periods."""
    if not log.statistics or period is None:
        return []
    sizes = {window.batches for window in log.statistics}
    uneven = sorted(size for size in sizes if size % period)
    if not uneven:
        return []
    means = [window.mean_s for window in log.statistics if window.batches in uneven]
    size = uneven[0]
    fewest = size // period
    holds = f"{fewest} or {fewest + 1} slow batches" if fewest else "one slow batch or none"
    return [
        f"the log's windows of {size} batches give waits of {format_seconds(min(means))} to "
        f"{format_seconds(max(means))} in the mean; {size} is no multiple of {period}, so a window holds {holds}: "
        "not used for the rate"
    ]


def label_fact(log: TrainingLog) -> list[str]:
    """Return the reasons that the log's author printed with slow batches."""
    labels = Counter(printable(batch.label) for batch in log.slow if batch.label)
    if not labels:
        return []
    shown = ", ".join(f"{label!r} ({number} lines)" for label, number in labels.most_common(LABELS_SHOWN))
    return [f"{shown}: names that the log's author gave, not measurements, so not taken as evidence"]


def excluded_lines_facts(found: Periodicity) -> list[str]:
    """Return the facts on duplicate lines and on timestamps that contradict the waits."""
    facts = []
    if found.duplicates:
        facts.append(
            f"{found.duplicates} lines name a slow batch once more (other ranks, or a second handler): left out"
        )
    if found.contradictory:
        facts.append(
            f"between {found.contradictory} pairs of slow batches the timestamps leave less time than was waited"
        )
    return facts


# -- step times and data times -------------------------------------------------------------------------------------


def data_time_change_fact(spans: Sequence[LogSpan]) -> list[str]:
    """Return the fact on a change of the data time; an epoch's first span, in which the workers start, is left out."""
    later = [span for span in spans if not span.first]
    trend = find_trend([span.wait_s / span.batches for span in later])
    if trend is None or trend.kind == "steady":
        return []
    return [describe_change("data time per step", trend, f"step {later[trend.at].step}")]


def data_time_spikes_fact(log: TrainingLog) -> list[str]:
    """Return the fact on lines with a spike of the data time; the first batch of an epoch, always slow, is left out."""
    waits = [(meter.step, meter.wait_s) for meter in log.meters if meter.wait_s is not None and meter.step]
    step_s = log.step_without_wait_s
    if len(waits) < 2 or step_s is None:
        return []
    usual_s = median(wait for _, wait in waits)
    spikes = [(step, wait) for step, wait in waits if wait > max(SPIKE_FACTOR * usual_s, step_s)]
    if not spikes:
        return []
    step, longest_s = max(spikes, key=lambda spike: spike[1])
    return [
        f"{len(spikes)} of {len(waits)} lines show a spike of the data time, the longest {format_seconds(longest_s)} "
        f"at step {step}, where {format_seconds(usual_s)} is usual"
    ]


def worker_start_fact(spans: Sequence[LogSpan]) -> list[str]:
    """Return the fact on the start of the workers, if the log has the first batch of an epoch on a line of its own."""
    waits = [span.wait_s for span in spans if span.first and span.batches == 1]
    if not waits or max(waits) < WORKER_START_S:
        return []
    return [f"the first batch of an epoch is waited for {format_seconds(median(waits))}: the start of the workers"]


def uncovered_time_fact(log: TrainingLog, spans: Sequence[LogSpan]) -> list[str]:
    """Return the fact that the step times cover only a part of the time between the first and the last line."""
    times = [meter.at_s for meter in log.meters if meter.at_s is not None]
    if len(times) < 2 or len(times) != len(log.meters):
        return []
    elapsed_s = times[-1] - times[0]
    covered_s = sum(span.time_s for span in spans[1:])
    if elapsed_s <= 0 or covered_s > (1 - UNCOVERED_SHARE) * elapsed_s:
        return []
    return [
        f"the step times add up to {format_seconds(covered_s)} of the {format_seconds(elapsed_s)} between the first "
        "and the last line: the rest is outside the steps (evaluation, checkpoints) or in steps that the log's means "
        "leave out"
    ]


# -- progress bars and totals --------------------------------------------------------------------------------------


def bar_clock_fact(log: TrainingLog) -> list[str]:
    """Return the time since the first step by the bar's own clock; the first slow batch is often logged much later."""
    last = max(log.bars, key=lambda bar: bar.done, default=None)
    if last is None or last.done == 0 or last.elapsed_s == 0:
        return []
    fact = (
        f"by the bar's own clock the first {last.done} of {last.total} steps took {format_seconds(last.elapsed_s)}, "
        f"{format_seconds(last.elapsed_s / last.done)} each"
    )
    step_s = log.step_without_wait_s
    if step_s is None:
        return [fact]
    return [f"{fact}; at {format_seconds(step_s)} a step they would have taken {format_seconds(step_s * last.done)}"]


def bar_rate_facts(bars: Sequence[ProgressBar], batch_size: int | None) -> list[str]:
    """Return the rate by the progress bars, and how the time per step developed."""
    pieces = [
        (b.done, b.done - a.done, b.elapsed_s - a.elapsed_s)
        for a, b in pairwise(_spaced_bars(bars))
        if b.done > a.done and b.elapsed_s > a.elapsed_s
    ]
    if not pieces:
        return []
    total_s = sum(seconds for _, _, seconds in pieces)
    rate = describe_rate(sum(steps for _, steps, _ in pieces) / total_s, batch_size)
    facts = [f"{rate} over {format_seconds(total_s)} by the bar"]
    trend = find_trend([seconds / steps for _, steps, seconds in pieces])
    if trend is not None and trend.kind != "steady":
        facts.append(describe_change("time per step", trend, f"step {pieces[trend.at][0]}"))
    return facts


def _spaced_bars(bars: Sequence[ProgressBar]) -> list[ProgressBar]:
    """Return the bars that are BAR_SECONDS_MIN after the one before, or of another epoch."""
    spaced: list[ProgressBar] = []
    for bar in bars:
        if not spaced or bar.done < spaced[-1].done or bar.elapsed_s - spaced[-1].elapsed_s >= BAR_SECONDS_MIN:
            spaced.append(bar)
    return spaced


def summary_facts(log: TrainingLog) -> list[str]:
    """Return the totals of the run that the log's own summaries give."""
    facts = []
    for total in log.summaries:
        parts = (
            ("{:.3g} samples/s", total.samples_per_s),
            ("{:.3g} steps/s", total.steps_per_s),
            ("{:.0f} s in all", total.seconds),
        )
        if totals := ", ".join(text.format(value) for text, value in parts if value is not None):
            facts.append(f"{totals} by the log's summary")
    return facts
