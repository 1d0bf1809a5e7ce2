"""Which objects a user means: a key, everything in a folder, a glob."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from penstock.errors import SettingError
from penstock.storage.object_store.client import get_store, import_obstore, renew_store
from penstock.storage.object_store.io_thread import run_on_io_thread, store_counts
from penstock.storage.object_store.request import next_chunk, with_retries
from penstock.storage.object_store.retry import DEFAULT_RETRY_POLICY, RetryState, classify
from penstock.storage.object_store.url import RemoteUrl, parse_url

PAGE_SIZE = 1000
"""Objects that stores tell of in one answer."""


def find_objects(pattern: str, wanted: Callable[[str], bool], enough: int | None = None) -> list[str]:
    """The objects that a URL means and whose names are `wanted`. A single key is taken at its word.

    With `enough`, no more is listed than it takes to find about so many.
    """
    url = parse_url(pattern)
    if glob.has_magic(url.key) and not (url.is_web or (wanted(url.key) and run_on_io_thread(_exists(url)))):
        return _matching_glob(url, wanted, enough)
    if wanted(url.key):
        return [str(url)]
    if url.is_web:
        raise SettingError(f"{url} is no shard, and a web server has no listing", advice="Name the shards themselves")
    return _inside_folder(url, wanted, enough)


def _matching_glob(url: RemoteUrl, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    fixed = re.split(r"[*?\[]", url.key, maxsplit=1)[0].rpartition("/")[0]
    shape = url.key.split("/")
    keys = run_on_io_thread(
        _list_keys(url, fixed, lambda key: wanted(key) and _matches_glob(shape, key.split("/")), enough)
    )
    return _sorted_urls(keys, url, "matches")


def _inside_folder(url: RemoteUrl, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    folder = url.key.rstrip("/")
    start = f"{folder}/" if folder else ""
    keys = run_on_io_thread(
        _list_keys(url, folder, lambda key: "/" not in key.removeprefix(start) and wanted(key), enough)
    )
    return _sorted_urls(keys, url, "lies in")


def _sorted_urls(keys: list[str], url: RemoteUrl, how: str) -> list[str]:
    if not keys:
        raise SettingError(f"no shard {how} {str(url)!r}")
    return [str(RemoteUrl(url.scheme, url.bucket, key)) for key in sorted(keys)]


def _matches_glob(shape: list[str], names: list[str]) -> bool:
    """As a shell has it: `*` stays in its folder, `**` does not."""
    if not shape:
        return not names
    if shape[0] == "**":
        return any(_matches_glob(shape[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], shape[0]) and _matches_glob(shape[1:], names[1:])


async def _list_keys(url: RemoteUrl, prefix: str, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    """Of everything below a prefix, what is wanted; however long the listing is, each page has its time."""
    told, store = _ListedObjects(wanted), get_store(url)
    trouble = RetryState(str(url), DEFAULT_RETRY_POLICY, lambda: renew_store(url, store))
    while True:
        try:
            store_counts.requests += 1
            pages = import_obstore().list(store, prefix or None, offset=told.last, chunk_size=PAGE_SIZE)
            while enough is None or len(told.found) < enough:
                page = await next_chunk(pages, DEFAULT_RETRY_POLICY)
                if page is None:
                    break
                if told.add([meta["path"] for meta in page]):
                    trouble.progressed()
            return told.found
        except Exception as error:
            failure = classify(error)
        await trouble.wait_or_raise(failure)
        told.resume()
        store = get_store(url)


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
            await import_obstore().head_async(store, url.object_path)
        except FileNotFoundError:
            return False
        return True

    return await with_retries(url, DEFAULT_RETRY_POLICY, ask)
