"""Expand what a user writes into a list of shards: files, folders, globs and brace ranges, local or as URLs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from penstock.errors import SettingError
from penstock.storage.object_store.url import is_remote, split_query

SHARD_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd")
MAX_EXPANDED = 1_000_000
"""More shards than any dataset has; a range like {0..99999999999} is a typing error."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def expand_shard_paths(patterns: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return all shards that the patterns name, each once, in order; a pattern that names none is an error."""
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    queries: dict[str, str] = {}  # by shard
    for pattern in patterns:
        # A query may be secret, so it is split off before any message can show the pattern.
        address, query = split_query(os.fspath(pattern))
        for braceless in expand_braces(address):
            for shard in _matching_shards(f"{braceless}?{query}" if query else braceless):
                if queries.setdefault(shard, query) != query:
                    raise SettingError(
                        "is given twice, with different queries",
                        shard=shard,
                        advice="A query counts as a signature: what distinguishes two shards must be in the path",
                    )
    return list(queries)


def expand_braces(pattern: str) -> Iterator[str]:
    """Expand `a-{000..002}.tar` and `{train,val}.tar` as a shell does; zero padding is kept."""
    pieces = _BRACES.split(pattern)
    choices = [[piece] if number % 2 == 0 else _brace_choices(piece, pattern) for number, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MAX_EXPANDED:
        raise SettingError(f"{pattern!r} stands for {total} names", advice=f"At most {MAX_EXPANDED} are allowed.")
    return ("".join(parts) for parts in product(*choices))


def _brace_choices(inside: str, pattern: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        if "," not in inside:
            raise SettingError(f"{{{inside}}} in {pattern!r} is neither a range nor a list", advice="Write {000..127}.")
        return inside.split(",")
    first, last = numbers.groups()
    padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    step = 1 if int(first) <= int(last) else -1
    if abs(int(last) - int(first)) > MAX_EXPANDED:
        raise SettingError(f"{{{inside}}} in {pattern!r} is too long", advice=f"At most {MAX_EXPANDED} are allowed.")
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]


def _matching_shards(pattern: str) -> list[str]:
    if is_remote(pattern):
        from penstock.storage.object_store.listing import (
            find_objects,  # late: it imports asyncio, which local paths do not need
        )

        return find_objects(pattern, is_shard_name)
    path = Path(pattern)
    if path.is_dir():
        inside = sorted(str(file) for file in path.iterdir() if is_shard_name(file.name))
        if not inside:
            raise SettingError(f"no shards ({', '.join(SHARD_ENDINGS)}) in folder {pattern!r}")
        return inside
    if path.exists():
        return [pattern]
    if glob.has_magic(pattern):
        names = sorted(name for name in glob.glob(pattern, recursive=True) if is_shard_name(name))
        if names:
            return names
        raise SettingError(f"no shard matches {pattern!r}")
    raise SettingError(f"no such file or folder: {pattern!r}")


def is_shard_name(name: str) -> bool:
    """Return whether a file's name is that of a shard; hidden files are temporary files."""
    base = os.path.basename(name)
    return base.lower().endswith(SHARD_ENDINGS) and not base.startswith(".")
