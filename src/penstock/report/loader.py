"""A loader's numbers in one line."""

from __future__ import annotations

from penstock.core.hops import Hop
from penstock.core.stats import CardTimes, LoaderStats


def status_line(now: LoaderStats, before: LoaderStats | None) -> str:
    """What happened since the last line, and who was the bottleneck."""
    hops = now.hops if before is None else _between(now, before)
    step = hops[-1]
    delivered = now.samples - (before.samples if before is not None else 0)
    rate = delivered / step.total_s if step.total_s > 0 else 0.0
    slowest = max(hops, key=lambda hop: hop.busy).name
    engine = now.engine
    return (
        f"epoch {now.epoch}, {now.position} of {now.epoch_samples} samples, {rate:.0f}/s, "
        f"training waited {step.starved:.0%}, bottleneck {slowest} | "
        + ", ".join(f"{hop.name} {hop.busy:.0%}" for hop in hops[:-1])
        + f" | {engine.workers} workers, {engine.readers} readers, {engine.look_ahead} ahead"
        + _card(now.card, None if before is None else before.card, step.total_s)
    )


def _between(now: LoaderStats, before: LoaderStats) -> tuple[Hop, ...]:
    return tuple(late.since(early) for late, early in zip(now.hops, before.hops, strict=True))


def _card(now: CardTimes | None, before: CardTimes | None, seconds: float) -> str:
    """Of the time, where there is a card."""
    if now is None or seconds <= 0:
        return ""
    times = now if before is None else now.since(before)
    return f" | card stalled {times.stalled_s / seconds:.0%}, copies seen {times.exposed_s / seconds:.0%}"
