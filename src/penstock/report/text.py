"""Tables and numbers for a terminal. What comes from users is shown as it is, never read as markup."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from penstock.core.words import human_bytes
from penstock.errors import printable

__all__ = ["human_bytes", "human_duration", "human_rate", "table"]


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> Table:
    """A plain table that folds long cells instead of cutting them; the columns in `right` hold numbers."""
    grid = Table(title=Text(printable(title)), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        grid.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    return grid


def human_rate(bytes_per_s: float) -> str:
    """Bytes a second, like `human_bytes`."""
    return f"{human_bytes(bytes_per_s)}/s"


def human_duration(seconds: float) -> str:
    """The largest unit that leaves a readable number."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
