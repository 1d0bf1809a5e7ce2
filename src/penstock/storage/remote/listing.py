"""Which objects a user means: a key, everything in a folder, a glob."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable
from typing import Any

from penstock.errors import SettingError
from penstock.storage.remote.channel import run
from penstock.storage.remote.fetch import patiently
from penstock.storage.remote.patience import PATIENCE
from penstock.storage.remote.stores import obstore
from penstock.storage.remote.url import RemoteUrl, parse


def find(pattern: str, wanted: Callable[[str], bool]) -> list[str]:
    """The objects that a URL means and whose names are `wanted`. A single key is taken at its word."""
    url = parse(pattern)
    if glob.has_magic(url.key) and not (url.web or (wanted(url.key) and run(_exists(url)))):
        return _matching(url, wanted)
    if wanted(url.key):
        return [str(url)]
    if url.web:
        raise SettingError(f"{url} is no shard, and a web server has no listing", advice="Name the shards themselves")
    return _inside(url, wanted)


def _matching(url: RemoteUrl, wanted: Callable[[str], bool]) -> list[str]:
    fixed = re.split(r"[*?\[]", url.key, maxsplit=1)[0].rpartition("/")[0]
    shape = url.key.split("/")
    return _some(
        [key for key in run(_keys(url, fixed)) if wanted(key) and _fits(shape, key.split("/"))], url, "matches"
    )


def _inside(url: RemoteUrl, wanted: Callable[[str], bool]) -> list[str]:
    folder = url.key.rstrip("/")
    start = f"{folder}/" if folder else ""
    keys = [key for key in run(_keys(url, folder)) if "/" not in key.removeprefix(start) and wanted(key)]
    return _some(keys, url, "lies in")


def _some(keys: list[str], url: RemoteUrl, how: str) -> list[str]:
    if not keys:
        raise SettingError(f"no shard {how} {str(url)!r}")
    return [str(RemoteUrl(url.scheme, url.bucket, key)) for key in sorted(keys)]


def _fits(shape: list[str], names: list[str]) -> bool:
    """As a shell has it: `*` stays in its folder, `**` does not."""
    if not shape:
        return not names
    if shape[0] == "**":
        return any(_fits(shape[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], shape[0]) and _fits(shape[1:], names[1:])


async def _keys(url: RemoteUrl, prefix: str) -> list[str]:
    """Of everything below a prefix."""

    async def ask(store: Any) -> list[str]:
        return [meta["path"] for meta in await obstore().list(store, prefix or None).collect_async()]

    return await patiently(url, PATIENCE, ask)


async def _exists(url: RemoteUrl) -> bool:
    """Whether a name with brackets in it is an object's own."""

    async def ask(store: Any) -> bool:
        try:
            await obstore().head_async(store, url.object_path)
        except FileNotFoundError:
            return False
        return True

    return await patiently(url, PATIENCE, ask)
