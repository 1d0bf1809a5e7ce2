"""The help of commands: in the encoding of the output, and without the Python types that typer adds to arguments."""

from __future__ import annotations

import sys
from typing import Any

from typer.core import TyperCommand, TyperGroup

from penstock.core.text import encodable


class Command(TyperCommand):
    """A command with this help."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return _help(self, super().get_help, ctx)


class CommandGroup(TyperGroup):
    """A group of commands with this help."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return _help(self, super().get_help, ctx)


def _help(command: Any, get_help: Any, ctx: Any) -> str:
    """Return the help; click would print it as UTF-8 where the encoding is ASCII."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda **_: None
    return encodable(get_help(ctx), sys.stdout.encoding or "ascii")
