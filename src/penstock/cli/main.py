"""Puts the commands together. A call imports only the command that it names, since importing all takes a while."""

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
"""Each is the function of that name in the module of that name, which may have a CONTEXT (click's settings) for it."""
SHARDS = "shards"
SHARDS_COMMANDS = ("ls", "index", "check", "pack")


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the program with all commands, or with one only if the arguments of the call name it."""
    app = typer.Typer(
        name="penstock",
        help="Load training data as fast as the hardware can, and find out why a training waits for data.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    named = arguments[0] if arguments else ""
    if named == "--version":
        return app
    for name in [named] if named in COMMANDS else () if named == SHARDS else COMMANDS:
        module = import_module(f"penstock.cli.{name}")
        app.command(context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))
    if named not in COMMANDS:
        app.add_typer(_shards(), name=SHARDS)
    return app


def _shards() -> typer.Typer:
    from penstock.cli.shards.ray_option import OptionalRayAddress

    app = typer.Typer(help="List, index, check and pack shards.", no_args_is_help=True, rich_markup_mode=None)
    for name in SHARDS_COMMANDS:
        command = getattr(import_module(f"penstock.cli.shards.{name}"), name)
        app.command(cls=OptionalRayAddress)(command)
    return app


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Keep a GPU fed."""


def main() -> None:
    """Run the program. Penstock's own errors are one line on stderr; a traceback means a defect in Penstock."""
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
