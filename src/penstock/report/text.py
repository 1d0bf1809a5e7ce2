"""Tables, escaping and the loader's status line, for a terminal and for Markdown.

Text from users (names, paths, messages) is shown as it is and never read as markup.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from penstock.core.hops import Hop
from penstock.core.stats import GpuTimes, LoaderStats
from penstock.errors import printable

_MARKDOWN = re.compile(r"[\\`*\[\]#|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+>](?=\s)|^\d+(?=[.)]\s)")
"""Characters that Markdown would interpret."""


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> Table:
    """Return a plain table that folds long cells instead of cutting them; the columns in `right` hold numbers."""
    grid = Table(title=Text(printable(title)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        grid.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    return grid


def listing(items: Iterable[tuple[str, str]]) -> Table:
    """Return a list whose items are marks with a text of any length beside them."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right")
    grid.add_column(overflow="fold")
    for mark, text in items:
        grid.add_row(mark, Text(printable(text)))
    return grid


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(escape_markdown(cell) for cell in row)} |"


def escape_markdown(text: str) -> str:
    """Escape text so that Markdown shows it as it is: no markup, no HTML, no line breaks."""
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\", plain)


def end_sentence(text: str) -> str:
    """Add a full stop unless the text ends a sentence, so that another sentence can follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


# -- the status line of a loader -----------------------------------------------------------------------------------


def status_line(now: LoaderStats, before: LoaderStats | None) -> str:
    """Return one line on what happened since the last line, and which hop was the bottleneck."""
    hops = now.hops if before is None else _since(now, before)
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
        + _gpu_shares(now.gpu_times, None if before is None else before.gpu_times, step.total_s)
    )


def _since(now: LoaderStats, before: LoaderStats) -> tuple[Hop, ...]:
    return tuple(hop.since(earlier) for hop, earlier in zip(now.hops, before.hops, strict=True))


def _gpu_shares(now: GpuTimes | None, before: GpuTimes | None, seconds: float) -> str:
    if now is None or seconds <= 0:
        return ""
    times = now if before is None else now.since(before)
    return f" | GPU stalled {times.stalled_s / seconds:.0%}, waiting for copies {times.exposed_s / seconds:.0%}"
