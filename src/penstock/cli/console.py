"""Output of all commands: the two consoles, progress bars, JSON, and the exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from penstock.errors import printable

OK = 0
FOUND = 1
"""The command found something wrong with its input, such as flaws in shards."""
USAGE = 2
"""The command line is wrong."""
FAILED = 3
"""The command could not finish its work."""
INTERRUPTED = 130
"""The user pressed Ctrl-C, as shells report it: 128 + SIGINT."""

out = Console()
notices = Console(stderr=True)
"""Progress and notices go to stderr, so that `--json | jq` works."""

_NOT_ASCII = re.compile(r"[^\x20-\x7e\n]")


def print_line(text: str, console: Console = out) -> None:
    """Print text as it is: control characters are escaped, and nothing in it is taken for markup."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def print_notice(text: str) -> None:
    """Print text to stderr as it is."""
    print_line(text, notices)


def print_json(document: object) -> None:
    """Print JSON to stdout; control characters, which a terminal might obey, are escaped."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    typer.echo(_NOT_ASCII.sub(lambda odd: odd[0] if odd[0].isprintable() else json.dumps(odd[0])[1:-1], text))


@contextmanager
def progress(description: str, total: int) -> Iterator[Progress]:
    """Show a bar for one task (number 0) of `total` steps; it disappears at the end."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notices, transient=True) as bar:
        bar.add_task(description, total=total)
        yield bar
