"""Listings that take long: a failure costs the page that was awaited, on a clock of the test's own."""

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
"""Of a budget of 60 s: the whole listing takes twice that."""


class GenericError(Exception):
    """As obstore names it."""


class Store:
    """Stands for the library: tells of its keys page by page, and breaks before the pages that it is told to."""

    def __init__(self, keys, clock):
        self.keys = keys
        self.clock = clock
        self.breaks = []
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
        if self._store.breaks and self._store.breaks[0] in page:
            self._store.breaks.pop(0)
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


def test_it_may_take_longer_than_the_budget_and_goes_on_where_it_broke(store):
    store.breaks = ["08.tar", "08.tar", "10.tar"]
    assert expand_shard_paths("s3://bucket/") == URLS
    assert store.offsets == [None, "07.tar", "07.tar", "09.tar"]


def test_a_store_that_has_another_order_is_asked_from_the_start(store):
    store.keys = KEYS[6:] + KEYS[:6]
    store.breaks = ["04.tar"]
    assert expand_shard_paths("s3://bucket/") == URLS
    assert store.offsets == [None, None]


def test_a_page_that_never_comes_ends_it(store):
    for store.keys in (KEYS, KEYS[6:] + KEYS[:6]):
        store.breaks = ["04.tar"] * 100
        with pytest.raises(StorageError, match="tries in"):
            expand_shard_paths("s3://bucket/")
