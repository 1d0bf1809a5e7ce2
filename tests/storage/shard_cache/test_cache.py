"""A shard cache copies, evicts and shares shards, and falls back to direct reads when its disk fails."""

import errno
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from penstock.errors import SettingError, StorageError
from penstock.storage.shard_cache import copy as staging
from penstock.storage.shard_cache.cache import ShardCache
from penstock.storage.shard_cache.copy import CacheFallback, ShardVersion

SIZE = 100_000
JOB = Path(__file__).with_name("cachejob.py")


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "slow"
    folder.mkdir()
    paths = [folder / f"{number}.tar" for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(SIZE))
    return paths


@pytest.fixture
def fast(tmp_path):
    return tmp_path / "fast"


def content(cache, path):
    with cache.open(path) as shard:
        return os.pread(shard.fd, shard.size_bytes + 1, 0), shard.from_cache


def entries(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("entry-"))


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(("part-", "lock-"))]


def test_the_first_open_copies_the_shard_and_the_second_is_a_hit(shards, fast):
    cache = ShardCache(fast, 10 * SIZE)
    for _ in range(2):
        assert content(cache, shards[0]) == (shards[0].read_bytes(), True)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.staged, stats.staged_bytes) == (1, 1, 1, SIZE)
    assert leftovers(fast) == []
    assert entries(fast)[0].endswith(".tar")


def test_staging_before_use_makes_the_first_open_a_hit(shards, fast):
    cache = ShardCache(fast, 10 * SIZE)
    assert cache.stage(shards[0])
    assert cache.stage(shards[0])
    content(cache, shards[0])
    assert (cache.stats().hits, cache.stats().staged) == (1, 1)


def test_the_least_recently_used_entry_is_evicted_first(shards, fast):
    cache = ShardCache(fast, 2 * SIZE)
    content(cache, shards[0])
    content(cache, shards[1])
    for age, path in ((100, shards[0]), (50, shards[1])):
        os.utime(cache._files.entry(ShardVersion.of(path)), (age, age))
    content(cache, shards[0])  # its last use is now the more recent one
    content(cache, shards[2])
    assert content(cache, shards[0])[1]
    assert cache.stats().hits == 2
    assert not cache._files.has_copy(ShardVersion.of(shards[1]))
    assert (cache.stats().evicted, cache.stats().evicted_bytes) == (1, SIZE)


def test_an_open_copy_stays_readable_after_its_eviction(shards, fast):
    cache = ShardCache(fast, SIZE)
    with cache.open(shards[0]) as shard:
        content(ShardCache(fast, SIZE), shards[1])
        assert not shard.path.exists()
        assert os.pread(shard.fd, SIZE, 0) == shards[0].read_bytes()


def test_a_changed_shard_is_a_new_entry(shards, fast):
    cache = ShardCache(fast, 10 * SIZE)
    content(cache, shards[0])
    shards[0].write_bytes(os.urandom(SIZE))
    os.utime(shards[0], ns=(1, 1))
    assert content(cache, shards[0]) == (shards[0].read_bytes(), True)
    assert cache.stats().hits == 0


def test_a_symbolic_link_shares_the_entry_of_its_target(shards, fast, tmp_path):
    (tmp_path / "link.tar").symlink_to(shards[0])
    cache = ShardCache(fast, 10 * SIZE)
    content(cache, shards[0])
    content(cache, tmp_path / "link.tar")
    assert cache.stats().hits == 1


def test_an_empty_shard_is_copied(fast, tmp_path):
    (tmp_path / "empty.tar").write_bytes(b"")
    assert content(ShardCache(fast, SIZE), tmp_path / "empty.tar") == (b"", True)


def test_a_shard_larger_than_the_budget_is_read_directly_and_evicts_nothing(shards, fast):
    small = shards[0]
    os.truncate(small, 10)
    cache = ShardCache(fast, SIZE - 1)
    content(cache, small)
    assert content(cache, shards[1]) == (shards[1].read_bytes(), False)
    assert dict(cache.stats().fallbacks) == {CacheFallback.TOO_LARGE: 1}
    assert len(entries(fast)) == 1


def test_a_reason_is_counted_each_time_and_logged_once(shards, fast, caplog):
    cache = ShardCache(fast, SIZE - 1)
    with caplog.at_level(logging.INFO):
        for path in shards:
            content(cache, path)
    assert cache.stats().fallbacks[CacheFallback.TOO_LARGE] == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "larger than the cache's budget" in caplog.text


def test_unrelated_files_in_the_directory_are_neither_counted_nor_removed(shards, fast):
    fast.mkdir()
    (fast / "thesis.tex").write_bytes(bytes(10 * SIZE))
    cache = ShardCache(fast, SIZE)
    for path in shards:
        assert content(cache, path)[1]
    assert (fast / "thesis.tex").exists()


def test_a_truncated_entry_is_copied_again(shards, fast):
    cache = ShardCache(fast, 10 * SIZE)
    content(cache, shards[0])
    os.truncate(fast / entries(fast)[0], 5)
    assert content(cache, shards[0]) == (shards[0].read_bytes(), True)
    assert cache.stats().staged == 2


def test_a_symbolic_link_in_place_of_an_entry_is_not_followed(shards, fast, tmp_path):
    cache = ShardCache(fast, 10 * SIZE)
    fast.mkdir()
    (tmp_path / "bait").write_bytes(bytes(SIZE))
    cache._files.entry(ShardVersion.of(shards[0])).symlink_to(tmp_path / "bait")
    assert content(cache, shards[0]) == (shards[0].read_bytes(), True)
    assert (tmp_path / "bait").read_bytes() == bytes(SIZE)


@pytest.mark.skipif(os.name != "posix", reason="mode bits exist on POSIX only")
def test_only_the_owner_can_read_a_copy(shards, fast):
    cache = ShardCache(fast, 10 * SIZE)
    with cache.open(shards[0]) as shard:
        assert shard.path.stat().st_mode & 0o077 == 0


def test_a_copy_damaged_by_the_disk_is_not_used(shards, fast, monkeypatch):
    def flip(path):
        with open(path, "r+b") as stream:
            first = stream.read(1)
            stream.seek(0)
            stream.write(bytes([first[0] ^ 1]))

    monkeypatch.setattr(staging, "drop_pages", flip)
    cache = ShardCache(fast, 10 * SIZE)
    assert content(cache, shards[0]) == (shards[0].read_bytes(), False)
    assert dict(cache.stats().fallbacks) == {CacheFallback.DAMAGED: 1}
    assert (entries(fast), leftovers(fast)) == ([], [])


def test_a_shard_that_changes_during_its_copy_is_not_cached(shards, fast, monkeypatch):
    copy = staging._copy

    def change(stream, target):
        crc = copy(stream, target)
        os.utime(shards[0], ns=(7, 7))
        return crc

    monkeypatch.setattr(staging, "_copy", change)
    cache = ShardCache(fast, 10 * SIZE)
    assert content(cache, shards[0])[1] is False
    assert dict(cache.stats().fallbacks) == {CacheFallback.CHANGED: 1}
    assert (entries(fast), leftovers(fast)) == ([], [])


def test_an_interrupted_copy_leaves_nothing(shards, fast, monkeypatch):
    def interrupt(stream, target):
        target.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(staging, "_copy", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ShardCache(fast, 10 * SIZE).open(shards[0])
    assert (entries(fast), leftovers(fast)) == ([], [])


def test_an_unfinished_copy_is_not_waited_for_and_counts_towards_the_budget(shards, fast, monkeypatch):
    copying, resume = threading.Event(), threading.Event()
    copy = staging._copy

    def wait(stream, target):
        if stream.name == os.fspath(shards[0]):
            copying.set()
            assert resume.wait(60)
        return copy(stream, target)

    monkeypatch.setattr(staging, "_copy", wait)
    cache = ShardCache(fast, SIZE)
    stager = threading.Thread(target=cache.stage, args=(shards[0],))
    stager.start()
    assert copying.wait(60)
    assert content(cache, shards[0])[1] is False
    assert content(cache, shards[1])[1] is False
    resume.set()
    stager.join()
    assert dict(cache.stats().fallbacks) == {CacheFallback.BUSY: 1, CacheFallback.NO_SPACE: 1}
    assert content(cache, shards[0]) == (shards[0].read_bytes(), True)


def test_a_lock_that_stays_taken_leads_to_a_direct_read(shards, fast):
    cache = ShardCache(fast, 10 * SIZE)
    cache._files.lock_timeout_s = 0.0
    fast.mkdir()
    with FileLock(fast / "directory.lock"):
        assert content(cache, shards[0]) == (shards[0].read_bytes(), False)
    assert dict(cache.stats().fallbacks) == {CacheFallback.LOCKED: 1}


def test_a_full_disk_leads_to_a_direct_read(shards, mount_tmpfs):
    cache = ShardCache(mount_tmpfs("tiny", "size=64k"), 10 * SIZE)
    assert content(cache, shards[0]) == (shards[0].read_bytes(), False)
    assert dict(cache.stats().fallbacks) == {CacheFallback.FULL: 1}


def test_a_disk_without_free_inodes_counts_as_full(shards, mount_tmpfs):
    cache = ShardCache(mount_tmpfs("tiny", "nr_inodes=1"), 10 * SIZE)
    assert content(cache, shards[0]) == (shards[0].read_bytes(), False)
    assert dict(cache.stats().fallbacks) == {CacheFallback.FULL: 1}


def test_copies_in_a_read_only_directory_are_still_read(shards, mount_tmpfs):
    folder = mount_tmpfs("fast", "size=1m")
    ShardCache(folder, 10 * SIZE).stage(shards[0])
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    cache = ShardCache(folder, 10 * SIZE)
    assert content(cache, shards[0]) == (shards[0].read_bytes(), True)
    assert content(cache, shards[1]) == (shards[1].read_bytes(), False)
    assert dict(cache.stats().fallbacks) == {CacheFallback.READ_ONLY: 1}


def test_a_file_in_place_of_the_directory_leads_to_a_direct_read(shards, fast):
    fast.write_text("oops")
    cache = ShardCache(fast, 10 * SIZE)
    assert content(cache, shards[0]) == (shards[0].read_bytes(), False)
    assert dict(cache.stats().fallbacks) == {CacheFallback.BROKEN: 1}


def test_an_io_error_during_a_copy_leads_to_a_direct_read(shards, fast, monkeypatch):
    def fail(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(staging, "drop_pages", fail)
    cache = ShardCache(fast, 10 * SIZE)
    assert content(cache, shards[0]) == (shards[0].read_bytes(), False)
    assert dict(cache.stats().fallbacks) == {CacheFallback.BROKEN: 1}
    assert leftovers(fast) == []


def test_a_missing_shard_is_a_storage_error(tmp_path, fast):
    with pytest.raises(StorageError, match=r"gone\.tar"):
        ShardCache(fast, SIZE).open(tmp_path / "gone.tar")


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_that_is_not_positive_is_refused(budget, fast):
    with pytest.raises(SettingError):
        ShardCache(fast, budget)


def start_job(fast, budget, rounds, *shards, hang=False):
    arguments = [str(fast), str(budget), str(rounds), *map(str, shards)]
    flags = ["--hang-in-copy"] if hang else []
    return subprocess.Popen([sys.executable, str(JOB), *flags, *arguments], stdout=subprocess.PIPE, text=True)


def job_result(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(output)


def test_concurrent_jobs_share_their_copies(shards, fast):
    results = [job_result(job) for job in [start_job(fast, 10 * SIZE, 20, *shards) for _ in range(3)]]
    assert [one["wrong"] for one in results] == [0, 0, 0]
    assert sum(one["staged"] for one in results) == len(shards)  # no job copied what another had copied
    assert len(entries(fast)) == len(shards)
    assert leftovers(fast) == []


def test_concurrent_jobs_with_a_small_budget_read_correctly_and_keep_to_it(shards, fast):
    jobs = [start_job(fast, 2 * SIZE, 15, *order) for order in (shards, shards[::-1], shards[2:] + shards[:2])]
    assert [job_result(job)["wrong"] for job in jobs] == [0, 0, 0]
    assert sum((fast / name).stat().st_size for name in entries(fast)) <= 2 * SIZE
    assert leftovers(fast) == []


def test_an_unfinished_copy_of_a_killed_job_is_removed(shards, fast):
    job = start_job(fast, SIZE, 1, shards[0], hang=True)
    assert job.stdout.readline() == "copying\n"
    cache = ShardCache(fast, SIZE)
    assert content(cache, shards[0])[1] is False  # the other job is alive and holds the lock
    assert len(leftovers(fast)) == 2
    job.kill()
    job.communicate()
    assert content(cache, shards[1]) == (shards[1].read_bytes(), True)  # its space is free again
    assert leftovers(fast) == []
    assert dict(cache.stats().fallbacks) == {CacheFallback.BUSY: 1}
