"""`penstock demo`: the whole loop, on shards it makes itself."""

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
from penstock.demo.demo import DemoResult, DemoRun, Said
from penstock.demo.shards import DemoSize, clear
from penstock.demo.table import result_document, result_text
from penstock.errors import printable

INTERRUPTED = 130


def demo(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="For shards, recordings and the report; kept afterwards.")
    ] = Path("demo"),
    samples: Annotated[int, typer.Option(min=16, help="How many samples to make.")] = 256,
    seconds: Annotated[float, typer.Option(min=1, max=600, help="Of each training.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """See the whole loop: a training watched, explained, planned for, cured.

    Makes SA-1B-like shards of half the size and trains a small student on
    them as field reports do it: tarfile, Pillow and torch's DataLoader. The
    run is watched like any script under "penstock run"; then come the
    verdict, the plan with its predicted gains, and the same training again:
    with the plan's settings, with penstock.Loader, and with penstock.Loader
    on packed shards. At the end, before and after side by side, predicted
    and measured, with the losses compared.

        penstock demo --folder /tmp/demo

    Takes about 90 s on 2 cores and 0.3 GB of disk; with a GPU it trains
    there. Needs torch. An earlier demo in the folder is replaced; a folder
    that is not from a demo is refused.

    Exit code: 0 shown, 1 losses that should agree do not, 2 wrong usage,
    3 a training failed.
    """
    need_torch("the demo trains with it")
    clear(folder)
    teller = _TerminalOutput(console.notices if as_json else console.out)
    try:
        result = DemoRun(folder, teller, DemoSize(samples), seconds).go()
    except KeyboardInterrupt:
        _say(console.notices, "interrupted")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        console.print_json(result_document(result))
    else:
        _print(result)
    raise typer.Exit(console.OK if all(each.agrees for each in result.agreements.values()) else console.FOUND)


class _TerminalOutput:
    """Tells as things happen; what is going on, on a terminal only."""

    def __init__(self, out: Console) -> None:
        self._out = out

    @contextmanager
    def doing(self, name: str, what: str) -> Iterator[Said]:
        """One line at its end."""
        said: list[str] = []
        began = time.perf_counter()
        with console.notices.status(f"{what} …"):
            yield said.append
        _say(self._out, f"{name:<8} {'; '.join(said)}  ({time.perf_counter() - began:.1f} s)")

    def show(self, what: RenderableType) -> None:
        """As it is."""
        self._out.print(what)


def _print(result: DemoResult) -> None:
    console.out.print(result_text(result))
    console.out.print()
    _say(console.out, f"{result.seconds:.0f} s in all. The run as it was, drawn: {result.report}")


def _say(out: Console, text: str) -> None:
    out.print(printable(text), markup=False, highlight=False, soft_wrap=True)
