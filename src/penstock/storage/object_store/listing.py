"""Which objects a user means: a key, everything in a folder, a glob."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from penstock.errors import SettingError
from penstock.storage.object_store.failures import classify
from penstock.storage.object_store.fetch import next_chunk, with_retries
from penstock.storage.object_store.io_thread import counts, run
from penstock.storage.object_store.retry import PATIENCE, RetryState
from penstock.storage.object_store.stores import obstore, renew, store_of
from penstock.storage.object_store.url import RemoteUrl, parse

PAGE = 1000
"""Objects that stores tell of in one answer."""


def find(pattern: str, wanted: Callable[[str], bool], enough: int | None = None) -> list[str]:
    """The objects that a URL means and whose names are `wanted`. A single key is taken at its word.

    With `enough`, no more is listed than it takes to find about so many.
    """
    url = parse(pattern)
    if glob.has_magic(url.key) and not (url.web or (wanted(url.key) and run(_exists(url)))):
        return _matching(url, wanted, enough)
    if wanted(url.key):
        return [str(url)]
    if url.web:
        raise SettingError(f"{url} is no shard, and a web server has no listing", advice="Name the shards themselves")
    return _inside(url, wanted, enough)


def _matching(url: RemoteUrl, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    fixed = re.split(r"[*?\[]", url.key, maxsplit=1)[0].rpartition("/")[0]
    shape = url.key.split("/")
    keys = run(_keys(url, fixed, lambda key: wanted(key) and _fits(shape, key.split("/")), enough))
    return _some(keys, url, "matches")


def _inside(url: RemoteUrl, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    folder = url.key.rstrip("/")
    start = f"{folder}/" if folder else ""
    keys = run(_keys(url, folder, lambda key: "/" not in key.removeprefix(start) and wanted(key), enough))
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


async def _keys(url: RemoteUrl, prefix: str, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    """Of everything below a prefix, what is wanted; however long the listing is, each page has its time."""
    told, store = _ListedObjects(wanted), store_of(url)
    trouble = RetryState(str(url), PATIENCE, lambda: renew(url, store))
    while True:
        try:
            counts.requests += 1
            pages = obstore().list(store, prefix or None, offset=told.last, chunk_size=PAGE)
            while enough is None or len(told.found) < enough:
                page = await next_chunk(pages, PATIENCE)
                if page is None:
                    break
                if told.add([meta["path"] for meta in page]):
                    trouble.over()
            return told.found
        except Exception as error:
            failure = classify(error)
        await trouble.met(failure)
        told.resume()
        store = store_of(url)


class _ListedObjects:
    """What a listing has said so far: after a failure it goes on behind that, where the store tells keys in order."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._in_order = True
        self._keys = self._most = 0
        self.found: list[str] = []
        self.last: str | None = None

    def add(self, keys: list[str]) -> bool:
        """One more page; whether it is further than any try has come."""
        known = [] if self.last is None else [self.last]
        self._in_order = self._in_order and all(one < another for one, another in pairwise(known + keys))
        self.last = keys[-1] if keys else self.last
        self.found += filter(self._wanted, keys)
        self._keys += len(keys)
        further, self._most = self._keys > self._most, max(self._keys, self._most)
        return further

    def resume(self) -> None:
        """A store that has another order (S3's directory buckets) is asked from the start."""
        if not self._in_order:
            self._in_order, self._keys, self.found, self.last = True, 0, [], None


async def _exists(url: RemoteUrl) -> bool:
    """Whether a name with brackets in it is an object's own."""

    async def ask(store: Any) -> bool:
        try:
            await obstore().head_async(store, url.object_path)
        except FileNotFoundError:
            return False
        return True

    return await with_retries(url, PATIENCE, ask)
