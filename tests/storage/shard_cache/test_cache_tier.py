"""Copies that are made in the background, and what happens when they cannot be made."""

import os
import shutil
import threading

import pytest
from tests.support.loader_helpers import wait_for_copies

from penstock.errors import SettingError
from penstock.options import CacheOptions
from penstock.storage.shard_cache import cache_tier
from penstock.storage.shard_cache import copy as staging
from penstock.storage.shard_cache.cache_tier import ShardTier
from penstock.storage.shard_cache.copy import CacheFallback, ShardVersion
from penstock.testing.clock import FakeClock

SIZE = 100_000


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "slow").mkdir()
    paths = [tmp_path / "slow" / f"{number}.tar" for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(SIZE))
    return paths


@pytest.fixture
def make_tier(tmp_path, shards):
    tiers = []

    def make(size_bytes=10 * SIZE, folder=tmp_path / "fast", **more):
        tiers.append(
            ShardTier(CacheOptions(str(folder), size_bytes), [ShardVersion.of(path) for path in shards], **more)
        )
        return tiers[-1]

    yield make
    for each in tiers:
        each.close()


def content(tier, shard):
    """Return the bytes of a shard's copy; None if there is no copy."""
    copy = tier.open(shard)
    if copy is None:
        return None
    with copy:
        return os.pread(copy.fd, SIZE + 1, 0)


def test_a_missing_copy_is_made_in_the_background(make_tier, shards):
    tier = make_tier()
    assert [content(tier, number) for number in range(4)] == [None] * 4
    wait_for_copies(tier)
    assert [content(tier, number) for number in range(4)] == [path.read_bytes() for path in shards]
    assert (tier.stats().staged, tier.stats().evicted) == (4, 0)


def test_only_the_first_shards_that_fit_are_copied_and_none_is_evicted(make_tier, shards, tmp_path):
    tier = make_tier(2 * SIZE + 5)
    for _ in range(3):
        found = [content(tier, number) is not None for number in range(4)]
        wait_for_copies(tier)
    assert found == [True, True, False, False]
    assert (tier.stats().staged, tier.stats().evicted) == (2, 0)
    assert sum(path.stat().st_size for path in (tmp_path / "fast").glob("entry-*")) == 2 * SIZE


def test_ranks_of_a_node_share_the_copies(make_tier):
    first, second = make_tier(), make_tier()
    content(first, 0)
    wait_for_copies(first)
    assert content(second, 0) is not None
    assert second.stats().staged == 0


def test_a_shard_that_another_rank_copies_is_tried_again_later(make_tier, shards, monkeypatch):
    copying, resume = threading.Event(), threading.Event()
    copy = staging._copy

    def wait(stream, target):
        copying.set()
        assert resume.wait(60)
        return copy(stream, target)

    monkeypatch.setattr(staging, "_copy", wait)
    clock = FakeClock()
    other, tier = make_tier(), make_tier(now=clock.now)
    content(other, 0)
    assert copying.wait(60)
    for _ in range(3):
        assert content(tier, 0) is None
        wait_for_copies(tier)
    assert dict(tier.stats().fallbacks) == {CacheFallback.BUSY: 1}
    resume.set()
    wait_for_copies(other)
    assert content(tier, 0) == shards[0].read_bytes()


def test_a_copy_of_another_version_is_not_opened(make_tier, shards):
    tier = make_tier()
    content(tier, 0)
    wait_for_copies(tier)
    shards[0].write_bytes(os.urandom(SIZE))
    os.utime(shards[0], ns=(7, 7))
    assert content(make_tier(), 0) is None


def test_after_a_full_disk_copies_pause(make_tier, mount_tmpfs):
    clock = FakeClock()
    tier = make_tier(folder=mount_tmpfs("tiny", "size=64k"), now=clock.now)
    for _ in range(3):
        assert [content(tier, number) for number in range(4)] == [None] * 4
        wait_for_copies(tier)
        attempts = tier.stats().fallbacks[CacheFallback.FULL]
        assert 1 <= attempts <= 4  # those requested before the first failure was known
    clock.advance(cache_tier.DISK_RETRY_AFTER_S + 1)
    content(tier, 0)
    wait_for_copies(tier)
    assert tier.stats().fallbacks[CacheFallback.FULL] == attempts + 1


def test_an_unreadable_shard_is_not_tried_again(make_tier, shards):
    tier = make_tier()
    shards[0].unlink()
    for _ in range(3):
        assert content(tier, 0) is None
        wait_for_copies(tier)
    assert dict(tier.stats().fallbacks) == {CacheFallback.UNREADABLE: 1}


def test_closing_cancels_an_unfinished_copy_and_removes_it(make_tier, shards, tmp_path, monkeypatch):
    reading, resume = threading.Event(), threading.Event()
    readinto = staging._CancellableStream.readinto

    def wait(self, buffer):
        reading.set()
        assert resume.wait(60)
        return readinto(self, buffer)

    monkeypatch.setattr(staging._CancellableStream, "readinto", wait)
    monkeypatch.setattr(cache_tier, "STOP_TIMEOUT_S", 0.0)
    tier = make_tier()
    content(tier, 0)
    assert reading.wait(60)
    threads = tier._threads._threads
    tier.close()
    resume.set()
    for thread in threads:
        thread.join(60)
    assert dict(tier.stats().fallbacks) == {CacheFallback.STOPPED: 1}
    assert [path.name for path in (tmp_path / "fast").iterdir()] == ["directory.lock"]
    content(tier, 0)  # starts the threads again
    wait_for_copies(tier)
    assert content(tier, 0) == shards[0].read_bytes()


def test_a_discarded_copy_is_not_used_again_and_a_later_run_makes_a_new_one(make_tier, shards):
    tier = make_tier()
    content(tier, 0)
    wait_for_copies(tier)
    with tier.open(0) as copy:
        tier.discard(0, copy)
    assert content(tier, 0) is None
    assert tier._threads is None
    later = make_tier()
    assert content(later, 0) is None
    wait_for_copies(later)
    assert content(later, 0) == shards[0].read_bytes()


def test_discarding_does_not_remove_a_newer_copy_of_another_job(make_tier, tmp_path, shards):
    tier = make_tier()
    content(tier, 0)
    wait_for_copies(tier)
    with tier.open(0) as copy:
        copy.path.unlink()
        other = make_tier()
        content(other, 0)
        wait_for_copies(other)
        tier.discard(0, copy)
    assert content(other, 0) == shards[0].read_bytes()


def test_the_default_budget_is_a_share_of_the_disk_and_does_not_change_while_filling(make_tier, tmp_path, monkeypatch):
    disk_bytes = 10 * SIZE
    fast = tmp_path / "fast"

    def usage(_):
        used = sum(path.stat().st_size for path in fast.glob("entry-*")) if fast.exists() else 0
        return shutil._ntuple_diskusage(disk_bytes, used, disk_bytes - used)

    monkeypatch.setattr(cache_tier.shutil, "disk_usage", usage)
    settings = CacheOptions(str(fast))
    assert cache_tier.cache_budget(settings) == 0.8 * disk_bytes
    tier = make_tier(None)
    content(tier, 0)
    wait_for_copies(tier)
    assert cache_tier.cache_budget(settings) == 0.8 * disk_bytes


@pytest.mark.parametrize(("folder", "size_bytes"), [("", None), ("s3://bucket/x", None), ("/fast", 0), ("/fast", -5)])
def test_invalid_cache_options_are_refused(folder, size_bytes):
    with pytest.raises(SettingError):
        CacheOptions(folder, size_bytes)
