"""Tables and numbers for a terminal. What comes from users is shown as it is, never read as markup."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from penstock.core.hops import Hop
from penstock.core.stats import GpuTimes, LoaderStats
from penstock.errors import printable


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> Table:
    """A plain table that folds long cells instead of cutting them; the columns in `right` hold numbers."""
    grid = Table(title=Text(printable(title)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        grid.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    return grid


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
        + f" | {engine.workers} workers, {engine.readers} readers, {engine.lookahead} ahead"
        + _card(now.gpu_times, None if before is None else before.gpu_times, step.total_s)
    )


def _between(now: LoaderStats, before: LoaderStats) -> tuple[Hop, ...]:
    return tuple(late.since(early) for late, early in zip(now.hops, before.hops, strict=True))


def _card(now: GpuTimes | None, before: GpuTimes | None, seconds: float) -> str:
    """Of the time, where there is a card."""
    if now is None or seconds <= 0:
        return ""
    times = now if before is None else now.since(before)
    return f" | card stalled {times.stalled_s / seconds:.0%}, copies seen {times.exposed_s / seconds:.0%}"
