"""Arguments and checks that several commands share."""

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
from penstock.storage.object_store.url import is_remote

Shards = Annotated[
    list[str],
    typer.Argument(help="Shards: files, folders, globs, ranges like 's-{000..127}.tar' (quoted), or URLs of these."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Require = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SUFFIX",
        help="A suffix every sample must have, e.g. _cam.jpg, or one of several: '.jpg|.png'; names split there "
        "(may be repeated).",
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes.  [default: all usable cores]")]
Quarantine = Annotated[
    Path, typer.Option(metavar="FILE", help="Where flaws are listed, as JSON lines; written only if there are any.")
]
QUARANTINE = Path("quarantine.jsonl")


_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kMGTP]?)(i?)(B|bit)?(?:/s)?\s*")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_bytes(text: str | None, option: str) -> float | None:
    """Parse bytes or bytes per second; None stays None.

    1 kB is 1000, 1 KiB is 1024, and 8 bit are a byte; a plain number is bytes.
    """
    if text is None:
        return None
    found = _AMOUNT.fullmatch(text.replace("K", "k", 1))
    if found is None or not float(found[1]) > 0:
        raise SettingError(
            f"{option}: {text!r} is no amount above 0", advice="Write 500GB, 25GB/s, 100Gbit/s or a number of bytes"
        )
    number, prefix, binary, unit = found.groups()
    return float(number) * float(1024 if binary else 1000) ** _POWERS[prefix] / (8 if unit == "bit" else 1)


def check_exists(path: str | None) -> str | None:
    """Refuse a path that does not exist as wrong usage; whether a URL exists, the store will report."""
    if path is not None and not is_remote(path) and not Path(path).exists():
        raise typer.BadParameter(f"Path '{path}' does not exist.")
    return path


StoragePath = Annotated[
    str | None,
    typer.Argument(
        metavar="PATH",
        callback=check_exists,
        help="A folder of shards, or one shard; or its URL (s3://bucket/folder/).",
    ),
]


def need_torch(why: str) -> None:
    """Raise a SettingError if torch is not installed."""
    if find_spec("torch") is None:
        raise SettingError(f"torch is not installed, and {why}", advice="Install it: pip install 'penstock[torch]'")


def call_factory(name: str, returns: str) -> Any:
    """Call "package.module:function" and return its result; the module may be in the working directory.

    `returns` says in an error message what the function must return.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    factory = function_named(name)
    try:
        return factory()
    except Exception as error:
        raise SettingError(
            f"{getattr(factory, '__name__', factory)} raised {type(error).__name__}: {error}",
            advice=f"It is called without arguments and must return {returns}",
        ) from error
