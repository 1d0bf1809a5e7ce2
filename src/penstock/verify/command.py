"""The command after `--` of `penstock verify`: which script to run, and whether this Python runs it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from penstock.errors import SettingError
from penstock.watcher.script.runner import Script

_PYTHON = re.compile(r"python(w|\d+(\.\d+)?t?)?(\.exe)?")
_LAUNCHERS = {
    "torchrun": "python -m torch.distributed.run",
    "accelerate": "python -m accelerate.commands.accelerate_cli",
    "deepspeed": "python -m deepspeed.launcher.runner",
    "lightning": "python -m lightning",
}
FORM = "Write -- python SCRIPT [ARGS] or -- python -m MODULE [ARGS]"


def parse_command(command: Sequence[str]) -> Script:
    """Parse `python SCRIPT …` or `python -m MODULE …`; raise SettingError for other commands, before anything runs."""
    if not command:
        raise SettingError("there is no command to run", advice=FORM)
    python, *rest = command
    name = os.path.basename(python)
    if not _PYTHON.fullmatch(name):
        raise SettingError(f"{name} is not python", advice=_advice_for(name))
    _check_interpreter(python)
    if not rest:
        raise SettingError("python is given nothing to run", advice=FORM)
    if rest[0] == "-m":
        if len(rest) < 2 or rest[1].startswith("-"):
            raise SettingError("python -m names no module", advice=FORM)
        return Script(tuple(rest[1:]), module=True)
    if rest[0].startswith("-"):
        raise SettingError(
            f"python's own option {rest[0]} is not passed on",
            advice="Only -m is; options have environment variables (PYTHONUNBUFFERED, PYTHONOPTIMIZE, PYTHONWARNINGS)",
        )
    if not os.path.exists(rest[0]):
        raise SettingError(f"there is no script {rest[0]}", advice="With -m, name a module")
    return Script(tuple(rest))


def _advice_for(name: str) -> str:
    if name in _LAUNCHERS:
        return f"Write {_LAUNCHERS[name]} … in its place"
    if name.endswith(".py"):
        return "Put python before it"
    return f"{FORM}; of a shell script, the python command that is inside it"


def _check_interpreter(python: str) -> None:
    """Raise SettingError unless it is the interpreter of this process: another one is another environment."""
    found = shutil.which(python)
    if found is None:
        raise SettingError(f"there is no {python} to run", advice=f"This penstock runs under {sys.executable}")
    if _location(found) != _location(sys.executable):
        raise SettingError(
            f"{python} is {found}, but this penstock runs under {sys.executable}",
            advice="Install penstock beside that python, or name the one that runs penstock",
        )


def _location(python: str) -> tuple[str, str]:
    """Return folder and file of an interpreter: a virtual environment has its own folder, but shares the file."""
    path = os.path.abspath(python)
    return os.path.realpath(os.path.dirname(path)), os.path.realpath(path)
