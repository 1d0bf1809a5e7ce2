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
    typer.Argument(
        metavar="SHARDS", help="Files, folders, globs, ranges like 's-{000..127}.tar' (quoted), or URLs of these."
    ),
]
Recording = Annotated[Path, typer.Argument(metavar="RECORDING", help="A recording of `penstock run`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Require = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SUFFIX",
        help="A suffix every sample must have, e.g. _cam.jpg, or one of several: '.jpg|.png'; names split there "
        "(may be repeated).",
    ),
]
NumWorkers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Worker processes.  [default: all usable cores]")
]
ImageSize = Annotated[
    int, typer.Option(min=1, metavar="PIXELS", help="Pixels per side of images for which no size is given.")
]
Refresh = Annotated[bool, typer.Option("--refresh", help="Measure again although a result is cached.")]
Quarantine = Annotated[
    Path, typer.Option(metavar="FILE", help="Where flaws are listed, as JSON lines; written only if there are any.")
]
QUARANTINE = Path("quarantine.jsonl")


_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kMGTP]?)(i?)(B|bit|b|)(/s|ps|)\s*")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_bytes(text: str, option: str) -> float:
    """Parse a size: 1 kB is 1000 bytes, 1 KiB is 1024, and a plain number is bytes."""
    number, unit, per_second = _parse_amount(text)
    if number is None or per_second or unit not in ("B", ""):
        raise SettingError(f"{option}: {text!r} is no size above 0", advice="Write 500GB, 2TiB or a number of bytes")
    return number


def parse_byte_rate(text: str, option: str) -> float:
    """Parse bytes per second. Bits are written Gbit/s, Gbps or Gb/s; a number without a unit is refused."""
    number, unit, _ = _parse_amount(text)
    if number is None or not unit:
        raise SettingError(f"{option}: {text!r} is no rate with its unit", advice="Write 25GB/s, 100Gbit/s or 100Gbps")
    return number if unit == "B" else number / 8


def _parse_amount(text: str) -> tuple[float | None, str, str]:
    """Return a number above 0, its unit without the prefix, and what stands for "per second"; None if it is none."""
    found = _AMOUNT.fullmatch(text.replace("K", "k", 1))
    if found is None or not float(found[1]) > 0:
        return None, "", ""
    number, prefix, binary, unit, per_second = found.groups()
    return float(number) * float(1024 if binary else 1000) ** _POWERS[prefix], unit, per_second


def parse_share(text: str, option: str) -> float:
    """Parse a share above 0 and below 1, such as 5% or 0.05."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = 0.0
    if rest or not 0 < share < 1:
        raise SettingError(f"{option}: {text!r} is no share above 0 and below 100%", advice="Write 5% or 0.05")
    return share


def check_exists(path: str | None) -> str | None:
    """Refuse a path that does not exist as wrong usage; whether a URL exists, the store will report."""
    if path is not None and not is_remote(path) and not Path(path).exists():
        raise SettingError(f"no such file or folder: {path!r}")
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
