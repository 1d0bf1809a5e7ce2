"""`penstock demo`: shows all of Penstock on shards that it makes itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from penstock.cli import console
from penstock.cli.arguments import AsJson, need_torch
from penstock.demo.demo import DemoRun, Say
from penstock.demo.report import result_document, result_text
from penstock.demo.shards import DemoSize, clear_folder
from penstock.errors import RecordingError

RESUMED = "The folder is kept as it is; a second call starts the demo again."


def demo(
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FOLDER", help="For shards, recordings and the report; it is kept."),
    ] = Path("demo"),
    samples: Annotated[int, typer.Option(min=16, metavar="N", help="Number of samples to make.")] = 256,
    duration: Annotated[
        float, typer.Option(min=1, max=600, metavar="SECONDS", help="Duration of each training.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """See a training watched, diagnosed, planned for, and made faster.

    Makes SA-1B-like shards of half the size and trains a small student on
    them as field reports do it: tarfile, Pillow and torch's DataLoader. The
    run is watched like any script under "penstock run"; then come the
    verdict, the plan with its predicted gains, and the same training again:
    with the plan's settings, with penstock.Loader, and with penstock.Loader
    on packed shards. At the end, a table compares all runs, predicted and
    measured, and their losses.

        penstock demo -o /tmp/demo

    Takes about 90 s on 2 cores and 0.3 GB of disk; with a GPU it trains
    there. Needs torch. An earlier demo in the folder is replaced; a folder
    that is not from a demo is refused.

    Exit code: 0 shown, 1 losses that should agree do not, 2 wrong usage,
    3 a training failed.
    """
    need_torch("the demo trains with it")
    clear_folder(output)
    terminal = _TerminalOutput(console.notices if as_json else console.out)
    try:
        result = DemoRun(output, terminal, DemoSize(samples), duration).run()
    except RecordingError as error:  # of a recording that the demo itself has made
        console.fail(error)
    if as_json:
        console.print_json(result_document(result))
    else:
        console.out.print(result_text(result))
        console.out.print()
        console.print_line(f"{result.seconds:.0f} s in all. A page with the first run: {result.report}")
    raise typer.Exit(console.OK if all(each.agrees for each in result.agreements.values()) else console.FOUND)


class _TerminalOutput:
    """Prints a line when a part of the demo is done, and shows on a terminal what is going on."""

    def __init__(self, out: Console) -> None:
        self._out = out

    @contextmanager
    def doing(self, name: str, what: str) -> Iterator[Say]:
        """Show what is being done; at the end, print one line with what was said meanwhile."""
        said: list[str] = []
        began = time.perf_counter()
        with console.busy(f"{what} …"):
            yield said.append
        console.print_line(f"{name:<8} {'; '.join(said)}  ({time.perf_counter() - began:.1f} s)", self._out)

    def show(self, what: RenderableType) -> None:
        """Print something as it is."""
        self._out.print(what)
