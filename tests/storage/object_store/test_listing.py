"""Long listings: a failure loses only the page that was awaited. Time is a fake clock."""

import asyncio

import pytest

from penstock.errors import StorageError
from penstock.storage.object_store import listing
from penstock.storage.object_store.retry import RetryPolicy
from penstock.storage.paths import expand_shard_paths
from penstock.testing import FakeClock

KEYS = [f"{number:02d}.tar" for number in range(12)]
PAGE = 2
PAGE_S = 20.0
"""Seconds per page. The retry budget is 60 s; the whole listing takes twice that."""


class GenericError(Exception):
    """An error with the name of obstore's own class."""


class Store:
    """A fake of obstore that lists its keys page by page, and fails before pages with a key in `failing_keys`."""

    def __init__(self, keys, clock):
        self.keys = keys
        self.clock = clock
        self.failing_keys = []
        self.offsets = []

    def list(self, store, prefix, *, offset, chunk_size):
        self.offsets.append(offset)
        later = [key for key in self.keys if offset is None or key > offset]
        return Pages(self, [later[at : at + PAGE] for at in range(0, len(later), PAGE)])


class Pages:
    def __init__(self, store, pages):
        self._store = store
        self._pages = iter(pages)

    def __anext__(self):
        return asyncio.ensure_future(self._next())

    async def _next(self):
        self._store.clock.advance(PAGE_S)
        page = next(self._pages, None)
        if page is None:
            raise StopAsyncIteration
        if self._store.failing_keys and self._store.failing_keys[0] in page:
            self._store.failing_keys.pop(0)
            raise GenericError("connection reset")
        return [{"path": key} for key in page]


@pytest.fixture
def store(monkeypatch):
    clock = FakeClock()
    store = Store(KEYS, clock)

    async def sleep(seconds):
        clock.sleep(seconds)

    monkeypatch.setattr(listing, "import_obstore", lambda: store)
    monkeypatch.setattr(listing, "get_store", lambda url: store)
    monkeypatch.setattr(listing, "DEFAULT_RETRY_POLICY", RetryPolicy(now=clock.now, sleep=sleep))
    return store


URLS = [f"s3://bucket/{key}" for key in KEYS]


def test_a_long_listing_resumes_behind_the_last_key_after_a_failure(store):
    store.failing_keys = ["08.tar", "08.tar", "10.tar"]
    assert expand_shard_paths("s3://bucket/") == URLS
    assert store.offsets == [None, "07.tar", "07.tar", "09.tar"]


def test_an_unordered_listing_restarts_from_the_beginning_after_a_failure(store):
    store.keys = KEYS[6:] + KEYS[:6]
    store.failing_keys = ["04.tar"]
    assert expand_shard_paths("s3://bucket/") == URLS
    assert store.offsets == [None, None]


def test_a_page_that_always_fails_ends_the_listing(store):
    for store.keys in (KEYS, KEYS[6:] + KEYS[:6]):
        store.failing_keys = ["04.tar"] * 100
        with pytest.raises(StorageError, match="tries in"):
            expand_shard_paths("s3://bucket/")
