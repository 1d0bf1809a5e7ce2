"""Puts the commands together; of a call only the one that it names, since importing all of them takes a while."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from rich.logging import RichHandler

from penstock import __version__
from penstock.cli import console
from penstock.errors import PenstockError, SettingError, printable

COMMANDS = (
    "doctor",
    "probe",
    "bench",
    "demo",
    "run",
    "diagnose",
    "plan",
    "tune",
    "sweep",
    "verify",
    "report",
    "compare",
)
"""Each the function of that name in the module of that name, which may have a CONTEXT for it."""
SHARDS = "shards"
OF_SHARDS = ("ls", "index", "check", "pack")


def make_app(words: Sequence[str] = ()) -> typer.Typer:
    """With all commands; where these words of a call name one, with that alone."""
    app = typer.Typer(
        name="penstock",
        help="Keeps a GPU fed: shards that stream at the speed of the hardware, and every stall explained.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    named = words[0] if words else ""
    if named == "--version":
        return app
    for name in [named] if named in COMMANDS else () if named == SHARDS else COMMANDS:
        module = import_module(f"penstock.cli.{name}")
        app.command(context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))
    if named not in COMMANDS:
        app.add_typer(_shards(), name=SHARDS)
    return app


def _shards() -> typer.Typer:
    from penstock.cli.shards.ray_option import RayMayStandAlone

    app = typer.Typer(
        help="Look at shards, index them, check them, pack them.", no_args_is_help=True, rich_markup_mode=None
    )
    for name in OF_SHARDS:
        command = getattr(import_module(f"penstock.cli.shards.{name}"), name)
        app.command(cls=RayMayStandAlone)(command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Keep a GPU fed."""


def main() -> None:
    """The console script. Errors of ours are one line; a traceback means a defect of ours."""
    handler = RichHandler(console=console.notices, show_time=False, show_path=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        make_app(sys.argv[1:])()
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(console.USAGE if isinstance(error, SettingError) else console.FAILED)
    except OSError as error:
        typer.echo(f"penstock: {printable(str(error))}", err=True)
        sys.exit(console.FAILED)


if __name__ == "__main__":
    main()
