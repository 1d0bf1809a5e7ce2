"""Find the objects that a URL names: a key, all objects in a folder, or a glob."""

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
"""Objects per answer to a listing request, the most that stores send."""


def find_objects(pattern: str, wanted: Callable[[str], bool], enough: int | None = None) -> list[str]:
    """Return the URLs of the objects that a pattern names and whose names are `wanted`.

    A single key is returned without checking that it exists. With `enough`, the listing ends after the page on which
    that many have been found.
    """
    url = parse_url(pattern)
    if glob.has_magic(url.key) and not (url.is_web or (wanted(url.key) and run_on_io_thread(_exists(url)))):
        return _matching_glob(url, wanted, enough)
    if wanted(url.key):
        return [str(url)]
    if url.is_web:
        raise SettingError(
            f"{url} is not a shard, and a web server has no listing", advice="Name the shards themselves"
        )
    return _inside_folder(url, wanted, enough)


def _matching_glob(url: RemoteUrl, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    prefix = re.split(r"[*?\[]", url.key, maxsplit=1)[0].rpartition("/")[0]
    pattern = url.key.split("/")
    listing = _list_keys(url, prefix, lambda key: wanted(key) and _matches_glob(pattern, key.split("/")), enough)
    return _sorted_urls(run_on_io_thread(listing), url, "matches")


def _inside_folder(url: RemoteUrl, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    folder = url.key.rstrip("/")
    start = f"{folder}/" if folder else ""
    listing = _list_keys(url, folder, lambda key: "/" not in key.removeprefix(start) and wanted(key), enough)
    return _sorted_urls(run_on_io_thread(listing), url, "lies in")


def _sorted_urls(keys: list[str], url: RemoteUrl, relation: str) -> list[str]:
    if not keys:
        raise SettingError(f"no shard {relation} {str(url)!r}")
    return [str(RemoteUrl(url.scheme, url.bucket, key)) for key in sorted(keys)]


def _matches_glob(pattern: list[str], names: list[str]) -> bool:
    """Match component by component as a shell does: `*` stays within its folder, `**` does not."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_matches_glob(pattern[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], pattern[0]) and _matches_glob(pattern[1:], names[1:])


async def _list_keys(url: RemoteUrl, prefix: str, wanted: Callable[[str], bool], enough: int | None) -> list[str]:
    """Return the wanted keys below a prefix. Each page has its own time limit, however long the listing is."""
    listed, store = _ListedObjects(wanted), get_store(url)
    state = RetryState(str(url), DEFAULT_RETRY_POLICY, lambda: renew_store(url, store))
    while True:
        try:
            store_counts.requests += 1
            pages = import_obstore().list(store, prefix or None, offset=listed.last, chunk_size=PAGE_SIZE)
            while enough is None or len(listed.wanted_keys) < enough:
                page = await next_chunk(pages, DEFAULT_RETRY_POLICY)
                if page is None:
                    break
                if listed.add([meta["path"] for meta in page]):
                    state.progressed()
            return listed.wanted_keys
        except Exception as error:
            failure = classify(error)
        await state.wait_or_raise(failure)
        listed.resume()
        store = get_store(url)


class _ListedObjects:
    """The keys that a listing has returned so far.

    After a failure the listing continues behind the last key, if the store lists keys in order.
    """

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._in_order = True
        self._count = 0
        """Keys listed by this attempt, including those it continued behind."""
        self._max_count = 0
        """Largest count of any attempt."""
        self.wanted_keys: list[str] = []
        self.last: str | None = None

    def add(self, keys: list[str]) -> bool:
        """Add a page; return whether the listing is further than any attempt before."""
        known = [] if self.last is None else [self.last]
        self._in_order = self._in_order and all(one < another for one, another in pairwise(known + keys))
        self.last = keys[-1] if keys else self.last
        self.wanted_keys += filter(self._wanted, keys)
        self._count += len(keys)
        further, self._max_count = self._count > self._max_count, max(self._count, self._max_count)
        return further

    def resume(self) -> None:
        """Prepare another attempt; a store with another order (S3's directory buckets) is listed from the start."""
        if not self._in_order:
            self._in_order, self._count, self.wanted_keys, self.last = True, 0, [], None


async def _exists(url: RemoteUrl) -> bool:
    """Return whether a name that contains glob characters is the name of an object."""

    async def send(store: Any) -> bool:
        try:
            await import_obstore().head_async(store, url.object_path)
        except FileNotFoundError:
            return False
        return True

    return await with_retries(url, DEFAULT_RETRY_POLICY, send)
