"""Puts the commands together. A call imports only the command that it names, since importing all takes a while."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from typer.core import TyperCommand

from penstock import __version__
from penstock.cli import console
from penstock.cli.help import Command, CommandGroup
from penstock.errors import PenstockError, RecordingError, SettingError, printable

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
"""Each is the function of that name in the module of that name.

The module may have a CONTEXT (click's settings), and RESUMED: what a second call after Ctrl-C does, as a sentence.
"""
SHARDS = "shards"
SHARDS_COMMANDS = ("ls", "index", "check", "pack")
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


def make_app(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the program with all commands, or with one only if the arguments of the call name it."""
    app = typer.Typer(
        name="penstock",
        help="Load training data as fast as the hardware can, and find out why a training waits for data.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=_HELP_OPTIONS,
        cls=CommandGroup,
    )
    app.callback()(_root)
    named = arguments[0] if arguments else ""
    if named == "--version":
        return app
    for name in [named] if named in COMMANDS else () if named == SHARDS else COMMANDS:
        _add(app, name, import_module(f"penstock.cli.{name}"))
    if named not in COMMANDS:
        app.add_typer(_shards(), name=SHARDS)
    return app


def _add(app: typer.Typer, name: str, module: ModuleType, cls: type[TyperCommand] = Command) -> None:
    """Add a command; its summary in the list of commands is the first line of its help, which is never cut short."""
    function = getattr(module, name)
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    context = getattr(module, "CONTEXT", None)
    app.command(short_help=summary, context_settings=context, cls=cls)(function)


def _shards() -> typer.Typer:
    from penstock.cli.shards.ray_option import OptionalRayAddress

    summary = "List, index, check and pack shards."
    app = typer.Typer(help=summary, short_help=summary, no_args_is_help=True, rich_markup_mode=None, cls=CommandGroup)
    for name in SHARDS_COMMANDS:
        _add(app, name, import_module(f"penstock.cli.shards.{name}"), cls=OptionalRayAddress)
    return app


def _version(requested: bool) -> None:
    if requested:
        console.print_document(f"penstock {__version__}")
        raise typer.Exit


def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Keep a GPU fed."""


def main() -> None:
    """Run the program. Errors of the call and of the machine are one line; a traceback means a defect in Penstock."""
    console.prepare_streams()
    handler = RichHandler(console=console.notices, show_time=False, show_path=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    sys.exit(_exit_code(sys.argv[1:]))


def _exit_code(arguments: Sequence[str]) -> int:
    """Run the program and print its error, if any; return the exit code."""
    try:
        try:
            command = typer.main.get_command(make_app(arguments))
            code = command.main([*arguments], "penstock", standalone_mode=False)
            console.flush_streams()
        except PenstockError as error:
            console.print_error(str(error))
            return console.USAGE if isinstance(error, SettingError | RecordingError) else console.FAILED
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # which click has turned into exit code 1
                return console.BROKEN_PIPE
            raise
        except typer.Abort:  # Ctrl-C, in older versions of click
            code = console.INTERRUPTED
        except BrokenPipeError:
            raise
        except OSError as error:
            console.print_error(_reason(error))
            console.discard_output()  # stdout may be what cannot be written, and would fail again at the end
            return console.USAGE if isinstance(error, FileNotFoundError) else console.FAILED
        except Exception as error:
            if not hasattr(error, "format_message"):  # of click, or of the copy of click that typer has
                raise
            _print_usage_error(error)
            return console.USAGE
        if code == console.INTERRUPTED:
            console.print_error(" ".join(filter(None, ("interrupted.", _resumed(arguments)))))
        return code if isinstance(code, int) else console.OK
    except BrokenPipeError:
        console.discard_output()
        return console.BROKEN_PIPE
    except OSError as error:  # stdout or stderr itself cannot be written
        console.discard_output()
        console.print_error(_reason(error))
        console.discard_output()
        return console.FAILED


def _reason(error: OSError) -> str:
    """Return the reason of an error, with the file if it is known."""
    reason = error.strerror or str(error)
    if error.errno in _CANNOT_WRITE and error.filename is None:
        return f"cannot write: {reason}"
    return printable(reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}")


def _print_usage_error(error: Any) -> None:
    """Print a wrong call as one line, without the words of the library that found it; no arguments print the help."""
    text = error.format_message()
    if text.startswith("Usage:"):
        print(text, file=sys.stderr)
        return
    context = getattr(error, "ctx", None)
    reason = " ".join(text.replace("Value error, ", "").split()).rstrip(".")
    reason += "" if reason.endswith("?") else "."
    path = context.command_path if context is not None else "penstock"
    console.print_error(f"{reason[:1].lower()}{reason[1:]} See {path} --help")


def _resumed(arguments: Sequence[str]) -> str:
    """Return what a second call of the interrupted command does."""
    names = [*arguments[:2]] if arguments[:1] == [SHARDS] else [*arguments[:1]]
    name = f"penstock.cli.{'.'.join(names)}"
    return str(getattr(sys.modules.get(name), "RESUMED", ""))


if __name__ == "__main__":
    main()
