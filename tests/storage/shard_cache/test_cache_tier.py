import os
import shutil
import threading

import pytest
from tests.support.loader_helpers import settle

from penstock.errors import SettingError
from penstock.options import CacheOptions
from penstock.storage.shard_cache import cache_tier as tier
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
def make(tmp_path, shards):
    made = []

    def tiered(size_bytes=10 * SIZE, folder=tmp_path / "fast", **more):
        made.append(
            ShardTier(CacheOptions(str(folder), size_bytes), [ShardVersion.of(path) for path in shards], **more)
        )
        return made[-1]

    yield tiered
    for each in made:
        each.close()


def content(tiered, shard):
    """None where there is no copy."""
    copy = tiered.open(shard)
    if copy is None:
        return None
    with copy:
        return os.pread(copy.fd, SIZE + 1, 0)


def test_a_shard_that_is_missing_is_copied_aside_and_then_there(make, shards):
    tiered = make()
    assert [content(tiered, number) for number in range(4)] == [None] * 4
    settle(tiered)
    assert [content(tiered, number) for number in range(4)] == [path.read_bytes() for path in shards]
    assert (tiered.stats().staged, tiered.stats().evicted) == (4, 0)


def test_only_the_first_that_fit_are_kept_and_nobody_is_driven_out(make, shards, tmp_path):
    tiered = make(2 * SIZE + 5)
    for _ in range(3):
        found = [content(tiered, number) is not None for number in range(4)]
        settle(tiered)
    assert found == [True, True, False, False]
    assert (tiered.stats().staged, tiered.stats().evicted) == (2, 0)
    assert sum(path.stat().st_size for path in (tmp_path / "fast").glob("entry-*")) == 2 * SIZE


def test_ranks_of_a_node_find_what_one_of_them_has_copied(make):
    first, second = make(), make()
    content(first, 0)
    settle(first)
    assert content(second, 0) is not None
    assert second.stats().staged == 0


def test_a_shard_that_another_rank_is_at_is_tried_again_later(make, shards, monkeypatch):
    copying, go_on = threading.Event(), threading.Event()
    copy = staging._copy

    def wait(stream, target):
        copying.set()
        assert go_on.wait(60)
        return copy(stream, target)

    monkeypatch.setattr(staging, "_copy", wait)
    clock = FakeClock()
    other, tiered = make(), make(now=clock.now)
    content(other, 0)
    assert copying.wait(60)
    for _ in range(3):
        assert content(tiered, 0) is None
        settle(tiered)
    assert dict(tiered.stats().fallbacks) == {CacheFallback.BUSY: 1}
    go_on.set()
    settle(other)
    assert content(tiered, 0) == shards[0].read_bytes()


def test_another_version_is_never_served(make, shards):
    tiered = make()
    content(tiered, 0)
    settle(tiered)
    shards[0].write_bytes(os.urandom(SIZE))
    os.utime(shards[0], ns=(7, 7))
    assert content(make(), 0) is None


def test_a_full_disk_costs_only_the_cache_and_is_left_in_peace(make, mount_tmpfs):
    clock = FakeClock()
    tiered = make(folder=mount_tmpfs("tiny", "size=64k"), now=clock.now)
    for _ in range(3):
        assert [content(tiered, number) for number in range(4)] == [None] * 4
        settle(tiered)
        attempts = tiered.stats().fallbacks[CacheFallback.FULL]
        assert 1 <= attempts <= 4  # those that were wanted before the first was known to fail
    clock.advance(tier.DISK_RETRY_AFTER_S + 1)
    content(tiered, 0)
    settle(tiered)
    assert tiered.stats().fallbacks[CacheFallback.FULL] == attempts + 1


def test_a_shard_that_cannot_be_copied_is_read_where_it_lies_and_not_tried_again(make, shards):
    tiered = make()
    shards[0].unlink()
    for _ in range(3):
        assert content(tiered, 0) is None
        settle(tiered)
    assert dict(tiered.stats().fallbacks) == {CacheFallback.UNREADABLE: 1}


def test_closing_gives_up_a_copy_under_way_and_leaves_nothing(make, shards, tmp_path, monkeypatch):
    reading, go_on = threading.Event(), threading.Event()
    readinto = staging._CancellableStream.readinto

    def wait(self, buffer):
        reading.set()
        assert go_on.wait(60)
        return readinto(self, buffer)

    monkeypatch.setattr(staging._CancellableStream, "readinto", wait)
    monkeypatch.setattr(tier, "STOP_TIMEOUT_S", 0.0)
    tiered = make()
    content(tiered, 0)
    assert reading.wait(60)
    threads = tiered._threads._threads
    tiered.close()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert dict(tiered.stats().fallbacks) == {CacheFallback.STOPPED: 1}
    assert [path.name for path in (tmp_path / "fast").iterdir()] == ["directory.lock"]
    content(tiered, 0)  # starts anew
    settle(tiered)
    assert content(tiered, 0) == shards[0].read_bytes()


def test_a_copy_that_is_distrusted_is_not_used_again_and_a_later_run_makes_a_new_one(make, shards):
    tiered = make()
    content(tiered, 0)
    settle(tiered)
    with tiered.open(0) as copy:
        tiered.discard(0, copy)
    assert content(tiered, 0) is None
    assert tiered._threads is None
    later = make()
    assert content(later, 0) is None
    settle(later)
    assert content(later, 0) == shards[0].read_bytes()


def test_a_copy_that_another_job_has_made_since_is_left_alone(make, tmp_path, shards):
    tiered = make()
    content(tiered, 0)
    settle(tiered)
    with tiered.open(0) as copy:
        copy.path.unlink()
        other = make()
        content(other, 0)
        settle(other)
        tiered.discard(0, copy)
    assert content(other, 0) == shards[0].read_bytes()


def test_without_a_size_it_takes_its_share_of_the_disk_and_that_stays_the_same(make, tmp_path, monkeypatch):
    room = 10 * SIZE
    fast = tmp_path / "fast"

    def usage(_):
        used = sum(path.stat().st_size for path in fast.glob("entry-*")) if fast.exists() else 0
        return shutil._ntuple_diskusage(room, used, room - used)

    monkeypatch.setattr(tier.shutil, "disk_usage", usage)
    settings = CacheOptions(str(fast))
    assert tier.cache_budget(settings) == 0.8 * room
    tiered = make(None)
    content(tiered, 0)
    settle(tiered)
    assert tier.cache_budget(settings) == 0.8 * room


@pytest.mark.parametrize(("folder", "size_bytes"), [("", None), ("s3://bucket/x", None), ("/fast", 0), ("/fast", -5)])
def test_settings_that_cannot_be_are_refused(folder, size_bytes):
    with pytest.raises(SettingError):
        CacheOptions(folder, size_bytes)
