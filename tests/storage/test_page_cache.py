"""When data goes through the page cache, with the memory the test says."""

import pytest

from penstock.storage import page_cache as pagecache

GiB = 1 << 30


@pytest.mark.parametrize(("size", "held"), [(0, True), (4 * GiB, True), (4 * GiB + 1, False), (100 * GiB, False)])
def test_data_is_cached_if_it_takes_at_most_half_of_the_free_memory(monkeypatch, size, held):
    monkeypatch.setattr(pagecache, "free_bytes", lambda: 8 * GiB)
    assert pagecache.fits_in_page_cache(size) is held
