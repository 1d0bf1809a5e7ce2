"""Puts the commands together."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.logging import RichHandler

from penstock import __version__
from penstock.cli import console
from penstock.cli.bench import bench
from penstock.cli.compare import compare
from penstock.cli.demo import demo
from penstock.cli.diagnose import diagnose
from penstock.cli.doctor import doctor
from penstock.cli.plan import plan
from penstock.cli.probe import probe
from penstock.cli.report import report
from penstock.cli.run import CONTEXT, run
from penstock.cli.shards.check import check
from penstock.cli.shards.cluster import RayMayStandAlone
from penstock.cli.shards.index import index
from penstock.cli.shards.ls import ls
from penstock.cli.shards.pack import pack
from penstock.cli.sweep import sweep
from penstock.cli.tune import tune
from penstock.cli.verify import verify
from penstock.errors import PenstockError, SettingError, printable

app = typer.Typer(
    name="penstock",
    help="Keeps a GPU fed: shards that stream at the speed of the hardware, and every stall explained.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
shards_app = typer.Typer(
    help="Look at shards, index them, check them, pack them.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(shards_app, name="shards")
app.command()(doctor)
app.command()(probe)
app.command()(bench)
app.command()(demo)
app.command(context_settings=CONTEXT)(run)
app.command()(diagnose)
app.command()(plan)
app.command()(tune)
app.command()(sweep)
app.command()(verify)
app.command()(report)
app.command()(compare)
for command in (ls, index, check, pack):
    shards_app.command(cls=RayMayStandAlone)(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Keep a GPU fed."""


def main() -> None:
    """The console script. Errors of ours are one line; a traceback means a defect of ours."""
    handler = RichHandler(console=console.notices, show_time=False, show_path=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        app()
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(console.USAGE if isinstance(error, SettingError) else console.FAILED)
    except OSError as error:
        typer.echo(f"penstock: {printable(str(error))}", err=True)
        sys.exit(console.FAILED)


if __name__ == "__main__":
    main()
