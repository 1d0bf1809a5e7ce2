"""The period of slow batches, and the throughput over whole periods.

torch delivers batches in order, and batch i belongs to worker i mod W. Any shortage that W workers share therefore
shows as one slow batch in W.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb, gcd

from penstock.diagnose.training_log.parsed_log import SlowBatch

GAPS_MIN = 3
"""Fewer gaps do not show a period."""
SHARE_MIN = 0.8
"""Share of the gaps that must be multiples of a period."""
CHANCE_MAX = 1e-3
"""Largest accepted probability that random gaps would show the same period."""
EXACT_GAP_ODDS = 2.5
"""One in e·p of random gaps with a mean of p batches is exactly p. One in 2.5·p is assumed, to be cautious."""
COMMON_GAPS = 8
"""Number of the most frequent gaps from which a period is derived, to bound the number of pairs."""
ROUNDING_TOLERANCE = 0.95
"""Timestamps and waits are rounded, so only this share of a wait must fit between two timestamps."""
CHANCE_TRIES_MAX = 1000
"""More tries than this are scaled down for the binomial sum, to keep it short and its terms in range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowInterval:
    """The batches after one slow batch, up to and including the next."""

    number: int
    """Number of the slow batch that ends it."""
    batches: int
    lost_s: float
    """Seconds waited for the slow batch that ends it."""
    seconds: float | None
    """Duration by the timestamps of the two lines, each of which is written when its slow batch has arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Periodicity:
    """The intervals between the slow batches of a log, and their period if there is one."""

    slow: tuple[SlowBatch, ...]
    """The slow batches in order, each once."""
    intervals: tuple[SlowInterval, ...]
    period: int | None
    """Batches per period."""
    multiples: int
    """Number of intervals whose length is a multiple of the period."""
    duplicates: int
    """Lines left out because they name the same batch again: several ranks, or two handlers of one log."""
    contradictory: int
    """Number of intervals whose timestamps leave less time than was waited, so the timestamps were not used."""

    @property
    def timed(self) -> tuple[SlowInterval, ...]:
        """The intervals with a duration."""
        return tuple(interval for interval in self.intervals if interval.seconds is not None)


def find_periodicity(slow: Sequence[SlowBatch], workers: Sequence[int] = ()) -> Periodicity:
    """Return the periodicity of at least one slow batch; `workers` are values of num_workers to prefer as the period.

    The batches are taken in the order of their timestamps if all have one, else in the order of the file.
    """
    rows = list(slow)
    if all(batch.at_s is not None for batch in rows):
        rows.sort(key=lambda batch: batch.at_s or 0.0)
    distinct = _without_duplicates(rows)
    intervals: list[SlowInterval] = []
    contradictory = 0
    for one, other in pairwise(distinct):
        if other.number < one.number:
            continue  # a new epoch begins between them
        seconds = _seconds_between(one, other)
        if seconds is not None and seconds < ROUNDING_TOLERANCE * other.seconds:
            seconds, contradictory = None, contradictory + 1
        batches = other.number - one.number
        intervals.append(SlowInterval(number=other.number, batches=batches, lost_s=other.seconds, seconds=seconds))
    gaps = [interval.batches for interval in intervals]
    period = find_period(gaps, workers)
    return Periodicity(
        slow=tuple(distinct),
        intervals=tuple(intervals),
        period=period,
        multiples=_count_multiples(gaps, period) if period else 0,
        duplicates=len(rows) - len(distinct),
        contradictory=contradictory,
    )


def find_period(gaps: Sequence[int], workers: Sequence[int] = ()) -> int | None:
    """Return the largest number of which nearly all gaps are multiples; None if there is none, or chance explains it.

    A value of `workers` that divides the period and occurs as a gap is preferred to the period itself.
    """
    common = [gap for gap, _ in Counter(gaps).most_common(COMMON_GAPS)]
    divisors = {*common, *(gcd(one, other) for one, other in combinations(common, 2))}
    given = [number for number in workers if number >= 2]
    candidates = sorted((number for number in divisors if number >= 2), reverse=True)
    for period in candidates:
        if _is_period(gaps, period, spent=1):  # one gap was used up by choosing the period
            preferred = [number for number in given if period % number == 0 and gaps.count(number) > 0]
            return max(preferred, default=period)
    return next((number for number in given if _is_period(gaps, number, spent=0)), None)


def _is_period(gaps: Sequence[int], period: int, spent: int) -> bool:
    """Return whether nearly all gaps equal the period, or are multiples of it, beyond what chance explains.

    `spent` gaps are left out of the test. Random gaps would match once in `odds`.
    """
    matches = ((gaps.count(period), EXACT_GAP_ODDS * period), (_count_multiples(gaps, period), 1.0 * period))
    return len(gaps) >= GAPS_MIN and any(
        hits >= SHARE_MIN * len(gaps) and _binomial_tail(hits - spent, len(gaps) - spent, 1 / odds) < CHANCE_MAX
        for hits, odds in matches
    )


def _binomial_tail(hits: int, tries: int, probability: float) -> float:
    """Return the probability of at least that many hits. More than CHANCE_TRIES_MAX tries are scaled down to that."""
    if tries > CHANCE_TRIES_MAX:
        hits, tries = hits * CHANCE_TRIES_MAX // tries, CHANCE_TRIES_MAX
    return sum(
        comb(tries, k) * probability**k * (1 - probability) ** (tries - k) for k in range(max(hits, 0), tries + 1)
    )


def _count_multiples(gaps: Sequence[int], period: int) -> int:
    return sum(gap % period == 0 for gap in gaps)


def _without_duplicates(rows: Sequence[SlowBatch]) -> list[SlowBatch]:
    """Return one entry per batch: of consecutive lines with the same number, the longest wait."""
    distinct: list[SlowBatch] = []
    for batch in rows:
        if distinct and distinct[-1].number == batch.number:
            distinct[-1] = max(distinct[-1], batch, key=lambda each: each.seconds)
        else:
            distinct.append(batch)
    return distinct


def _seconds_between(one: SlowBatch, other: SlowBatch) -> float | None:
    if one.at_s is None or other.at_s is None:
        return None
    return other.at_s - one.at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LogThroughput:
    """The throughput from the first slow batch to the last, so that every slow batch counts with its fast ones."""

    intervals: tuple[SlowInterval, ...]
    batches: int
    elapsed_s: float
    lost_s: float
    """Seconds waited for slow batches."""
    estimated: bool
    """Whether `elapsed_s` is the lost time plus the time of the steps, because the log has no timestamps."""

    @property
    def batches_per_s(self) -> float:
        """Batches per second."""
        return self.batches / self.elapsed_s

    @property
    def lost_share(self) -> float:
        """Share of the elapsed time that was waited for slow batches."""
        return self.lost_s / self.elapsed_s

    @property
    def seconds_per_batch(self) -> list[float]:
        """Mean seconds per batch, one number per interval."""
        return [(interval.seconds or 0.0) / interval.batches for interval in self.intervals]


def measure_throughput(found: Periodicity, step_s: float | None) -> LogThroughput | None:
    """Return the throughput by the timestamps; without any, estimate it from `step_s`; None if that is unknown too.

    `step_s` is the time of a step without the wait.
    """
    intervals: Sequence[SlowInterval] = found.timed
    if not intervals and step_s is not None:
        intervals = [
            SlowInterval(
                number=interval.number,
                batches=interval.batches,
                lost_s=interval.lost_s,
                seconds=interval.lost_s + interval.batches * step_s,
            )
            for interval in found.intervals
        ]
    elapsed_s = sum(interval.seconds or 0.0 for interval in intervals)
    if elapsed_s <= 0:
        return None
    return LogThroughput(
        intervals=tuple(intervals),
        batches=sum(interval.batches for interval in intervals),
        elapsed_s=elapsed_s,
        lost_s=sum(interval.lost_s for interval in intervals),
        estimated=not found.timed,
    )
