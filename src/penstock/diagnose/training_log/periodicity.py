"""How slow batches follow one another: their period, and what a period takes.

torch hands out batches in order and batch i is worker i mod W's, so a shortfall of W workers shows as one slow batch
in W.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb, gcd
from statistics import median

from penstock.diagnose.training_log.candidate_causes import Gain, gain_of
from penstock.diagnose.training_log.parsed_log import SlowBatch, TrainingLog

GAPS_MIN = 3
SHARE_MIN = 0.8
"""Of the gaps are multiples of a period, where it is one."""
CHANCE_MAX = 1e-3
"""That so many would be by accident."""
EXACT_ODDS = 2.5
"""Random gaps with a mean of p batches are exactly p once in e·p; less is claimed."""
_COMMON_GAPS = 8
_TOLERANCE = 0.95
"""Stamps and waits are rounded: so much of a wait must fit between two stamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowInterval:
    """From one slow batch to the next, that one included."""

    number: int
    """Of the slow batch it ends with."""
    batches: int
    lost_s: float
    """Waited for the slow batch."""
    seconds: float | None
    """By the stamps of the two lines: each is written when its slow batch has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Periodicity:
    """All beats of a log, and their period if there is one."""

    slow: tuple[SlowBatch, ...]
    """In order, each once."""
    beats: tuple[SlowInterval, ...]
    period: int | None
    on_beat: int
    """Beats whose length is a multiple of the period."""
    doubled: int
    """Lines left out because they name the same batch once more: several ranks, or two handlers of one log."""
    disagreeing: int
    """Beats whose stamps leave less time than was waited, so the stamps were not used."""

    @property
    def timed(self) -> tuple[SlowInterval, ...]:
        """Those with a duration."""
        return tuple(beat for beat in self.beats if beat.seconds is not None)


def find_periodicity(slow: Sequence[SlowBatch], workers: Sequence[int] = ()) -> Periodicity:
    """Of slow batches, one at least, in the order of the file, or of their stamps where all have one."""
    rows = list(slow)
    if all(batch.at_s is not None for batch in rows):
        rows.sort(key=lambda batch: batch.at_s or 0.0)
    single = _single(rows)
    beats: list[SlowInterval] = []
    disagreeing = 0
    for one, other in pairwise(single):
        if other.number < one.number:
            continue  # a new epoch: no gap
        seconds = _between(one, other)
        if seconds is not None and seconds < _TOLERANCE * other.seconds:
            seconds, disagreeing = None, disagreeing + 1
        batches = other.number - one.number
        beats.append(SlowInterval(number=other.number, batches=batches, lost_s=other.seconds, seconds=seconds))
    gaps = [beat.batches for beat in beats]
    period = find_period(gaps, workers)
    return Periodicity(
        slow=tuple(single),
        beats=tuple(beats),
        period=period,
        on_beat=_multiples(gaps, period) if period else 0,
        doubled=len(rows) - len(single),
        disagreeing=disagreeing,
    )


def find_period(gaps: Sequence[int], workers: Sequence[int] = ()) -> int | None:
    """The largest number that nearly all gaps are multiples of, unless that may be chance; num_workers first."""
    common = [gap for gap, _ in Counter(gaps).most_common(_COMMON_GAPS)]
    divisors = {*common, *(gcd(one, other) for one, other in combinations(common, 2))}
    given = [number for number in workers if number >= 2]
    found = sorted((number for number in divisors if number >= 2), reverse=True)
    for period in found:
        if _holds(gaps, period, spent=1):  # one gap was spent on choosing it
            nearer = [number for number in given if period % number == 0 and gaps.count(number) > 0]
            return max(nearer, default=period)
    return next((number for number in given if _holds(gaps, number, spent=0)), None)


def _holds(gaps: Sequence[int], period: int, spent: int) -> bool:
    """Nearly all gaps are the period itself, or else multiples of it; were gaps random, 1 in `odds` would be."""
    hits = ((gaps.count(period), EXACT_ODDS * period), (_multiples(gaps, period), 1.0 * period))
    return len(gaps) >= GAPS_MIN and any(
        hit >= SHARE_MIN * len(gaps) and _chance(hit - spent, len(gaps) - spent, 1 / odds) < CHANCE_MAX
        for hit, odds in hits
    )


def _chance(hits: int, tries: int, probability: float) -> float:
    """Of so many hits or more; above a thousand tries, of the same share of a thousand."""
    if tries > 1000:
        hits, tries = hits * 1000 // tries, 1000
    return sum(
        comb(tries, k) * probability**k * (1 - probability) ** (tries - k) for k in range(max(hits, 0), tries + 1)
    )


def _multiples(gaps: Sequence[int], period: int) -> int:
    return sum(gap % period == 0 for gap in gaps)


def _single(rows: Sequence[SlowBatch]) -> list[SlowBatch]:
    """One line per batch: of neighbours with the same number the longest wait."""
    single: list[SlowBatch] = []
    for batch in rows:
        if single and single[-1].number == batch.number:
            single[-1] = max(single[-1], batch, key=lambda each: each.seconds)
        else:
            single.append(batch)
    return single


def _between(one: SlowBatch, other: SlowBatch) -> float | None:
    if one.at_s is None or other.at_s is None:
        return None
    return other.at_s - one.at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRate:
    """From the first slow batch to the last: so a slow batch and its fast ones are counted together."""

    beats: tuple[SlowInterval, ...]
    batches: int
    elapsed_s: float
    lost_s: float
    """In slow batches."""
    estimated: bool
    """The log has no stamps: elapsed is what was lost plus the steps' own time."""

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / self.elapsed_s

    @property
    def share(self) -> float:
        """Of the time that was lost in slow batches."""
        return self.lost_s / self.elapsed_s

    @property
    def per_batch_s(self) -> list[float]:
        """Seconds per batch, beat by beat: 1 / rate, as it went."""
        return [(beat.seconds or 0.0) / beat.batches for beat in self.beats]

    def gain(self) -> Gain:
        """If no batch were slow."""
        return gain_of([beat.seconds or 0.0 for beat in self.beats], [beat.lost_s for beat in self.beats])


def log_rate(found: Periodicity, step_s: float | None) -> LogRate | None:
    """By the stamps; without any, from what a step takes by itself; else not known."""
    beats: Sequence[SlowInterval] = found.timed
    if not beats and step_s is not None:
        beats = [
            SlowInterval(
                number=beat.number,
                batches=beat.batches,
                lost_s=beat.lost_s,
                seconds=beat.lost_s + beat.batches * step_s,
            )
            for beat in found.beats
        ]
    elapsed_s = sum(beat.seconds or 0.0 for beat in beats)
    if elapsed_s <= 0:
        return None
    return LogRate(
        beats=tuple(beats),
        batches=sum(beat.batches for beat in beats),
        elapsed_s=elapsed_s,
        lost_s=sum(beat.lost_s for beat in beats),
        estimated=not found.timed,
    )


def step_without_wait_s(log: TrainingLog) -> float | None:
    """What a step takes by itself, as the log's phases or meters say: the usual one."""
    steps = [bar.step_without_wait_s for bar in log.bars if bar.phases and bar.step_without_wait_s is not None]
    steps = steps or [bar.compute_s for bar in log.bars if bar.compute_s is not None]
    steps = steps or [
        meter.time_s - meter.wait_s
        for meter in log.meters
        if meter.time_s is not None and meter.wait_s is not None and meter.time_s >= meter.wait_s
    ]
    return median(steps) if steps else None
