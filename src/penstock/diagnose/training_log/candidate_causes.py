"""The three causes that leave the same trace in a log, their common gain, and the experiment that separates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.finding import Finding

HEALTHY_SHARE = 0.05
"""If less than this share of the time is lost to waiting, nothing is worth changing."""
RESAMPLES = 1000
MAX_BLOCKS = 200
"""Spans are joined to at most this number of blocks before they are resampled."""
EQUAL_CONFIDENCE = 1 / 3
"""Confidence in each of three causes that the log does not separate."""
MIN_STEP_SHARE = 1e-3
"""Share of the time that steps take at least: step time and wait are rounded separately and may appear equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The relative increase in samples per second if there were no waiting. Removing one cause may give less."""

    middle: float
    low: float
    high: float
    """95% of the gains of resampled spans lie between `low` and `high`."""


def gain_without_waits(total_s: Sequence[float], waited_s: Sequence[float]) -> Gain:
    """Return the gain from the seconds of each span of the log, and the seconds waited in it."""
    totals, waits = np.asarray(total_s, dtype=np.float64), np.asarray(waited_s, dtype=np.float64)
    starts = np.linspace(0, len(totals), min(len(totals), MAX_BLOCKS), endpoint=False).astype(np.int64)
    totals, waits = np.add.reduceat(totals, starts), np.add.reduceat(waits, starts)
    draws = np.random.default_rng(0).integers(0, len(totals), (RESAMPLES, len(totals)))
    low, high = np.quantile([_gain(totals[draw].sum(), waits[draw].sum()) for draw in draws], (0.025, 0.975))
    return Gain(middle=_gain(totals.sum(), waits.sum()), low=float(low), high=float(high))


def _gain(total_s: float, waited_s: float) -> float:
    return float(total_s / max(total_s - waited_s, total_s * MIN_STEP_SHARE) - 1) if total_s else 0.0


def candidate_findings(
    gain: Gain, evidence: tuple[str, ...], *, workers: int | None, lagging_confidence: float = EQUAL_CONFIDENCE
) -> list[Finding]:
    """Return a finding each for shared storage, slow workers and one lagging worker, the most likely first."""
    others = (1 - lagging_confidence) / 2
    causes = (
        (
            "storage_bandwidth",
            others,
            "A resource that all workers share, the storage above all, may be saturated",
            "If it is: read less (smaller or packed samples, a cache) or from faster storage; fewer workers may do",
            f"With {_half(workers)} the rate stays the same.",
        ),
        (
            "decode_bound",
            others,
            "Every worker may be slow on its own: decoding, or the latency of each read",
            "If they are: cheaper decoding, or more workers while there are idle cores",
            f"With {_half(workers)} the rate halves.",
        ),
        (
            "lagging_worker",
            lagging_confidence,
            "One worker may lag behind (its shards, its core, its mount), and in-order delivery waits for it",
            "If one does: even out the shards, or in_order=False where the order of batches does not matter",
            "With in_order=False the rate recovers.",
        ),
    )
    findings = [
        Finding(
            rule=rule,
            gain=gain.middle,
            gain_low=gain.low,
            gain_high=gain.high,
            confidence=confidence,
            summary=f"{summary}; a log alone does not separate this from similar causes.",
            evidence=evidence,
            advice=f"{advice}.",
            experiment=experiment,
        )
        for rule, confidence, summary, advice, experiment in causes
    ]
    return sorted(findings, key=lambda finding: -finding.confidence)


def decisive_experiment(workers: int | None) -> str:
    """Return the description of the experiment that separates the three causes."""
    return (
        "Run it under `penstock run`: it shows how many batches are ready and which worker is awaited at each stall "
        "(nearly all ready: one lagging worker; none ready: shared storage or slow workers). "
        f"Without it, run once with {_half(workers)}: the same rate means a shared resource is saturated, half the "
        "rate means every worker is slow on its own. And once with in_order=False: if the rate recovers, one worker "
        "lags."
    )


def _half(workers: int | None) -> str:
    return f"half the workers ({workers // 2} instead of {workers})" if workers and workers >= 2 else "half the workers"
