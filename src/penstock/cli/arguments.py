"""Arguments that several commands take, said once."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.config import function_named
from penstock.errors import SettingError

Shards = Annotated[
    list[str],
    typer.Argument(help="Shards: files, folders, globs, ranges like 's-{000..127}.tar' (quoted), or URLs of these."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Require = Annotated[
    list[str] | None,
    typer.Option(help="A suffix every sample must have, e.g. _cam.jpg; tells how names split, too (may be repeated)."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes; all usable cores if not given.")]
Quarantine = Annotated[
    Path, typer.Option(metavar="FILE", help="Where flaws are listed, as JSON lines; written only if there are any.")
]
QUARANTINE = Path("quarantine.jsonl")


_FORM = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kMGTP]?)(i?)(B|bit)?(?:/s)?\s*")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def bytes_in(text: str | None, option: str) -> float | None:
    """Bytes, or bytes per second: 1 kB is 1000, 1 KiB 1024, 8 bit a byte; a plain number is bytes. None stays None."""
    if text is None:
        return None
    found = _FORM.fullmatch(text.replace("K", "k", 1))
    if found is None or not float(found[1]) > 0:
        raise SettingError(
            f"{option}: {text!r} is no amount above 0", advice="Write 500GB, 25GB/s, 100Gbit/s or a number of bytes"
        )
    number, prefix, binary, unit = found.groups()
    return float(number) * float(1024 if binary else 1000) ** _POWERS[prefix] / (8 if unit == "bit" else 1)


def need_torch(why: str) -> None:
    """Refused where it is not installed."""
    if find_spec("torch") is None:
        raise SettingError(f"torch is not installed, and {why}", advice="Install it: pip install 'penstock[torch]'")


def made_by(name: str, returns: str) -> Any:
    """What "package.module:function" returns. The module is looked for in the working directory, too."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    make = function_named(name)
    try:
        return make()
    except Exception as error:
        raise SettingError(
            f"{getattr(make, '__name__', make)} raised {type(error).__name__}: {error}",
            advice=f"It is called without arguments and must return {returns}",
        ) from error
