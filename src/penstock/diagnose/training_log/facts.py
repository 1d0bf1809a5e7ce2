"""What a log shows, as sentences with numbers: the evidence, not the judgement."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from penstock.core.format import format_percent, format_seconds
from penstock.diagnose.training_log.parsed_log import SlowBatch, TrainingLog
from penstock.diagnose.training_log.periodicity import LogRate, Periodicity
from penstock.diagnose.training_log.trend import Trend
from penstock.errors import printable


def rate(batches_per_s: float, batch_size: int | None) -> str:
    """Batches a second, and samples where a batch's size is known."""
    text = f"{batches_per_s:.3g} batches/s"
    return text if batch_size is None else f"{text} ({batches_per_s * batch_size:.3g} samples/s at batch {batch_size})"


def stalls(found: Periodicity, speed: LogRate | None, batch_size: int | None) -> tuple[str, ...]:
    """The slow batches, the rate over whole periods, and what was lost."""
    beats = found.beats
    waits = [batch.seconds for batch in found.slow]
    facts = [
        f"{len(waits)} slow batches, #{found.slow[0].number} to #{found.slow[-1].number}, of "
        f"{format_seconds(min(waits))} to "
        f"{format_seconds(max(waits))}"
    ]
    if found.period is not None and all(beat.batches == found.period for beat in beats):
        facts.append(f"each of the {len(beats)} gaps between them is {found.period} batches")
    elif found.period is not None:
        facts.append(f"{found.on_beat} of the {len(beats)} gaps between them are {found.period} batches or a multiple")
    if speed is not None:
        how = "estimated, without stamps" if speed.estimated else "by the stamps of their lines"
        periods = f", {speed.batches / found.period:.3g} periods" if found.period else ""
        facts.append(
            f"{speed.batches} batches in {speed.elapsed_s:.1f} s ({how}){periods}: {rate(speed.rate, batch_size)}"
        )
        facts.append(f"{speed.lost_s:.1f} s of these, {format_percent(speed.share)}, were waited in slow batches")
    return tuple(facts)


def turn(slow: Sequence[SlowBatch], period: int) -> list[str]:
    """Whose batches the slow ones are, if they all are one worker's."""
    turns = {batch.number % period for batch in slow}
    if len(turns) > 1:
        return []
    return [
        f"every slow batch is one of worker {turns.pop()}'s, if the log counts batches from 0 (number mod {period})"
    ]


def manner(speed: LogRate | None, went: Trend | None) -> list[str]:
    """Whether it stayed so."""
    if speed is None or went is None:
        return []
    per_batch = speed.per_batch_s
    if went.kind == "steady":
        return [
            f"from slow batch to slow batch it takes {format_seconds(mean(per_batch))} per batch, "
            f"{format_seconds(min(per_batch))} to {format_seconds(max(per_batch))}: steady"
        ]
    place = f", from batch #{speed.beats[went.at].number} on" if went.kind == "changed" else ", bit by bit"
    return [f"the time per batch went from {format_seconds(went.before)} to {format_seconds(went.after)}{place}"]


def step(log: TrainingLog, step_s: float | None, speed: LogRate | None) -> list[str]:
    """What the loop could do if data were always there."""
    if step_s is None or step_s == 0:
        return []
    named = next((bar.phases for bar in reversed(log.bars) if bar.phases), ())
    parts = " + ".join(f"{printable(name)} {format_seconds(seconds)}" for name, seconds in named)
    taken = f"a step takes {format_seconds(step_s)} by itself{f' ({parts})' if parts else ''}"
    if speed is None:
        return [taken]
    return [
        f"{taken}: {1 / step_s:.3g} batches/s if data were always there, {1 / step_s / speed.rate:.2g} times as many"
    ]


def windows(log: TrainingLog, period: int | None) -> list[str]:
    """Why the log's own means are not the rate."""
    if not log.statistics or period is None:
        return []
    sizes = {window.batches for window in log.statistics}
    off = sorted(size for size in sizes if size % period)
    if not off:
        return []
    means = [window.mean_s for window in log.statistics if window.batches in off]
    size = off[0]
    fewest = size // period
    holds = f"{fewest} or {fewest + 1} slow batches" if fewest else "one slow batch or none"
    return [
        f"the log's windows of {size} batches give waits of {format_seconds(min(means))} to "
        f"{format_seconds(max(means))} in the "
        f"mean; {size} is no multiple of {period}, so a window holds {holds}: not used for the rate"
    ]


def bars(log: TrainingLog, step_s: float | None) -> list[str]:
    """The bar's own clock, from its first step on: older than the first slow batch that is logged, often."""
    last = max(log.bars, key=lambda bar: bar.done, default=None)
    if last is None or last.done == 0 or last.elapsed_s == 0:
        return []
    fact = (
        f"by the bar's own clock the first {last.done} of {last.total} steps took {format_seconds(last.elapsed_s)}, "
        f"{format_seconds(last.elapsed_s / last.done)} each"
    )
    if step_s is None:
        return [fact]
    return [f"{fact}; at {format_seconds(step_s)} a step they would have taken {format_seconds(step_s * last.done)}"]
