"""Three causes that leave the same trace in a log, and the experiment that tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.finding import Finding

HEALTHY_SHARE = 0.05
"""Of the time lost to waiting: below it, nothing is worth changing."""
_RESAMPLES = 1000
_BLOCKS = 200
"""Stretches are joined to as many blocks at most."""
ALIKE = 1 / 3
"""Confidence in each of three that cannot be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """More samples per second if nothing were waited for; the cause of less than all of it gives less."""

    middle: float
    low: float
    high: float
    """95% of the gains of resampled stretches lie between these."""


def gain_of(total_s: Sequence[float], waited_s: Sequence[float]) -> Gain:
    """From the time of each stretch of the log and what of it was waited."""
    totals, waits = np.asarray(total_s, dtype=np.float64), np.asarray(waited_s, dtype=np.float64)
    starts = np.linspace(0, len(totals), min(len(totals), _BLOCKS), endpoint=False).astype(np.int64)
    totals, waits = np.add.reduceat(totals, starts), np.add.reduceat(waits, starts)
    picks = np.random.default_rng(0).integers(0, len(totals), (_RESAMPLES, len(totals)))
    low, high = np.quantile([_gain(totals[pick].sum(), waits[pick].sum()) for pick in picks], (0.025, 0.975))
    return Gain(middle=_gain(totals.sum(), waits.sum()), low=float(low), high=float(high))


def _gain(total_s: float, waited_s: float) -> float:
    # Times are rounded, each for itself: a thousandth at least is the loop's own.
    return float(total_s / max(total_s - waited_s, total_s * 1e-3) - 1) if total_s else 0.0


def look_alikes(gain: Gain, evidence: tuple[str, ...], *, workers: int | None, lagging: float = ALIKE) -> list[Finding]:
    """Shared storage, slow workers, one lagging worker; `lagging` is the confidence in the last."""
    others = (1 - lagging) / 2
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
            lagging,
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
            summary=f"{summary}; a log alone cannot tell this from its look-alikes.",
            evidence=evidence,
            advice=f"{advice}.",
            experiment=experiment,
        )
        for rule, confidence, summary, advice, experiment in causes
    ]
    return sorted(findings, key=lambda finding: -finding.confidence)


def decisive_experiment(workers: int | None) -> str:
    """What decides between the three."""
    return (
        "Run it under `penstock run`: it shows how many batches are ready and which worker is awaited at each stall "
        "(nearly all ready: one lagging worker; none ready: shared storage or slow workers). "
        f"Without it, run once with {_half(workers)}: the same rate means a shared resource is saturated, half the "
        "rate means every worker is slow on its own. And once with in_order=False: if the rate recovers, one worker "
        "lags."
    )


def _half(workers: int | None) -> str:
    return f"half the workers ({workers // 2} instead of {workers})" if workers and workers >= 2 else "half the workers"
