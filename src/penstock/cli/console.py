"""What the commands share: where they print, how they show progress, how they end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

OK = 0
FOUND = 1
"""Something is wrong with what was looked at."""
USAGE = 2
"""Something is wrong with what was asked."""
FAILED = 3
"""The work could not be finished."""

out = Console()
notices = Console(stderr=True)
"""Progress and notices go to stderr, so that `--json | jq` works."""


_ODD = re.compile(r"[^\x20-\x7e\n]")


def print_json(document: object) -> None:
    """A machine-readable answer, on stdout and alone there; what a terminal would obey is spelled out in it."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    typer.echo(_ODD.sub(lambda odd: odd[0] if odd[0].isprintable() else json.dumps(odd[0])[1:-1], text))


@contextmanager
def progress(what: str, total: int) -> Iterator[Progress]:
    """A bar that counts `total` steps of one task (number 0) and vanishes when done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notices, transient=True) as bar:
        bar.add_task(what, total=total)
        yield bar
