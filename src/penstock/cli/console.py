"""Output of all commands: the two consoles, progress, JSON, and the exit codes.

A terminal or a pipe may have any encoding. `prepare_streams` makes stdout and stderr print every text: characters that
the encoding lacks are replaced by ASCII glyphs (`core.text.ascii_glyphs`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from penstock.core.format import format_time_left
from penstock.core.text import ASCII_ERRORS, encodable
from penstock.errors import printable

OK = 0
FOUND = 1
"""The work is done, and its result needs action: findings, changes, flaws, a slower run."""
USAGE = 2
"""The command line is wrong, or an input is missing or is not what the command reads."""
FAILED = 3
"""The command could not finish its work."""
UNDECIDED = 4
"""The work is done, and what was measured does not decide: undetermined, inconclusive."""
INTERRUPTED = 130
"""The user pressed Ctrl-C, as shells report it: 128 + SIGINT."""
BROKEN_PIPE = 141
"""The reader of the output closed it, as shells report it: 128 + SIGPIPE."""

EXIT_CODES = {
    OK: "done, and nothing needs action",
    FOUND: "done, and the result needs action: findings, proposed changes, flaws, a slower run",
    USAGE: "the call is wrong: an option, or an input that is missing or is not what the command reads",
    FAILED: "the work could not be finished: a full disk, a failed script, a worker that died",
    UNDECIDED: "done, but what was measured does not decide: undetermined, inconclusive",
    INTERRUPTED: "interrupted by Ctrl-C",
    BROKEN_PIPE: "the reader of the output closed it, as `head` does",
}
"""The codes of all commands but `penstock run`, which ends with the script's own. docs/command-line.md has them."""


class _Terminal(Console):
    """A console that ends the program with its own exit code if the reader of its output has closed it."""

    def on_broken_pipe(self) -> None:
        """Leave it to `main`, which knows the exit code."""
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


out = _Terminal()
notices = _Terminal(stderr=True)
"""Progress and notices go to stderr, so that `--json | jq` works."""

_NOT_ASCII = re.compile(r"[^\x20-\x7e\n]")


def prepare_streams() -> None:
    """Make stdout and stderr accept every text, and replace those that were closed before the program started."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # stays open until the end
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ASCII_ERRORS)


def flush_streams() -> None:
    """Write what is buffered; a closed pipe or a full disk is reported here and not while the interpreter ends."""
    sys.stdout.flush()
    sys.stderr.flush()


def discard_output() -> None:
    """Let what is still buffered go to the null device, because it cannot be written."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(null, stream.fileno())
    os.close(null)


def print_line(text: str, console: Console = out) -> None:
    """Print text as it is: control characters are escaped, and nothing in it is taken for markup.

    A terminal gets it folded between words; in a pipe it is one line.
    """
    fold = console.is_terminal
    console.print(printable(text), markup=False, highlight=False, soft_wrap=not fold, overflow="ignore")


def print_notice(text: str) -> None:
    """Print text to stderr as it is."""
    print_line(text, notices)


def print_document(text: str) -> None:
    """Print a text of several lines to stdout as it is."""
    print(text, end="" if text.endswith("\n") else "\n")


def print_error(text: str) -> None:
    """Print an error, or a message of `penstock run` beside the output of the script, as one line to stderr."""
    print(f"penstock: {text}", file=sys.stderr, flush=True)


def fail(error: Exception, code: int = FAILED) -> NoReturn:
    """Print an error and end the command."""
    print_error(str(error))
    raise typer.Exit(code)


def print_json(document: object) -> None:
    """Print JSON to stdout; characters that a terminal might obey, or that the encoding lacks, are escaped."""
    try:
        text = msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=2).decode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        text = json.dumps(msgspec.to_builtins(document, enc_hook=str), indent=2)
    encoding = sys.stdout.encoding or "ascii"

    def escape(odd: re.Match[str]) -> str:
        plain = odd[0].isprintable() and encodable(odd[0], encoding) == odd[0]
        return odd[0] if plain else json.dumps(odd[0])[1:-1]

    print_document(_NOT_ASCII.sub(escape, text))


# -- progress ------------------------------------------------------------------------------------------------------


@contextmanager
def progress(description: str, total: float | None) -> Iterator[Progress]:
    """Show a bar for one task (number 0) of `total` steps, with the time left; it disappears at the end."""
    with _bars(BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        bar.add_task(description, total=total)
        yield bar


@contextmanager
def busy(description: str) -> Iterator[None]:
    """Show that something is being done, and for how long."""
    with _bars(TimeElapsedColumn()) as bar:
        bar.add_task(description, total=None)
        yield


@contextmanager
def timed(description: str, seconds: float) -> Iterator[Callable[[str], None]]:
    """Show a bar over the time that the work should take; yield a function that changes the description."""
    with _bars(_TimeBar(20), _TimeLeft()) as bar:
        task = bar.add_task(description, total=seconds)

        def describe(text: str) -> None:
            bar.update(task, description=printable(text))

        yield describe


def _bars(*columns: ProgressColumn) -> Progress:
    """Return progress bars for stderr. In a pipe and on a dumb terminal they print nothing."""
    spinner = "dots" if encodable("⠋", notices.encoding) == "⠋" else "line"
    shown = notices.is_terminal and not notices.is_dumb_terminal
    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    return Progress(SpinnerColumn(spinner), text, *columns, console=notices, transient=True, disable=not shown)


class _TimeBar(BarColumn):
    """A bar that fills with time."""

    def render(self, task: Task) -> Any:
        """Draw the elapsed share of the expected time."""
        task.completed = min(task.elapsed or 0.0, task.total or 0.0)
        return super().render(task)


class _TimeLeft(ProgressColumn):
    """The time left of the expected time."""

    def render(self, task: Task) -> Text:
        """Return a text such as "about 12 s left"."""
        return Text(format_time_left((task.total or 0.0) - (task.elapsed or 0.0)), no_wrap=True)
