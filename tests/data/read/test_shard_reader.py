"""Open shards: few at a time, and none closed under its reader."""

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from penstock.data.read import open_files as openfiles
from penstock.data.read.block_layout import Extent
from penstock.data.read.shard_reader import ShardReader
from penstock.errors import StorageError
from penstock.shards.scan import scan_shard
from penstock.storage.mounts import identify_storage
from penstock.storage.page_cache import ReadMethod, choose_method
from penstock.testing import IMAGENET, make_shards

SHARDS = 6


@pytest.fixture
def shards(tmp_path):
    return make_shards(tmp_path, IMAGENET, samples=SHARDS, shards=SHARDS, scale=0.1)


@pytest.fixture
def opened(shards, monkeypatch):
    """Open shards of which at most two stay so."""
    monkeypatch.setattr(openfiles, "MAX_OPEN_FILES", 2)
    reader = ShardReader([str(path) for path in shards], [scan_shard(path) for path in shards])
    yield reader
    reader.close()


@pytest.fixture
def openings(monkeypatch):
    """The paths that were opened, in turn."""
    paths, real = [], openfiles.PlainShard
    monkeypatch.setattr(openfiles, "PlainShard", lambda path: paths.append(path) or real(path))
    return paths


def head(reader, shard):
    into = bytearray(512)
    reader.read(shard, [Extent(0, 512, 0)], memoryview(into))
    return bytes(into)


def open_tars(folder):
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(target for target in targets if target.startswith(str(folder)))


def test_at_most_so_many_stay_open_and_all_are_read_right(opened, shards, tmp_path):
    for shard, path in enumerate(shards):
        assert head(opened, shard) == path.read_bytes()[:512]
        assert len(open_tars(tmp_path)) == min(2, shard + 1)


def test_the_one_that_was_not_used_for_longest_is_closed(opened, openings, shards, tmp_path):
    for shard in (0, 1, 0, 2, 0):
        head(opened, shard)
    assert openings == [str(shards[shard]) for shard in (0, 1, 2)]
    assert open_tars(tmp_path) == sorted(str(shards[shard]) for shard in (0, 2))


class Held:
    """Reads of shard 0 stop in the middle until they are let go."""

    def __init__(self, reader, monkeypatch):
        self.reached, self.go = threading.Semaphore(0), threading.Event()
        self.results = []
        real = os.preadv
        main = threading.main_thread()

        def preadv(fd, buffers, offset):
            if threading.current_thread() is not main:
                self.reached.release()
                assert self.go.wait(30)
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", preadv)
        self.threads = [threading.Thread(target=lambda: self.results.append(head(reader, 0))) for _ in range(2)]
        for thread in self.threads:
            thread.start()
            assert self.reached.acquire(timeout=30)

    def finish(self):
        self.go.set()
        for thread in self.threads:
            thread.join(30)


def test_a_shard_that_is_being_read_is_not_closed_whatever_else_is_opened(opened, shards, tmp_path, monkeypatch):
    held = Held(opened, monkeypatch)
    for shard in range(1, SHARDS):
        head(opened, shard)
    assert str(shards[0]) in open_tars(tmp_path)
    held.finish()
    assert held.results == [shards[0].read_bytes()[:512]] * 2
    assert len(open_tars(tmp_path)) == 2


def test_closing_leaves_a_shard_to_those_who_are_reading_it(opened, shards, tmp_path, monkeypatch):
    held = Held(opened, monkeypatch)
    head(opened, 1)
    opened.close()
    assert open_tars(tmp_path) == [str(shards[0])]
    held.finish()
    assert held.results == [shards[0].read_bytes()[:512]] * 2
    assert open_tars(tmp_path) == []
    assert head(opened, 0) == shards[0].read_bytes()[:512]


def test_a_shard_that_two_open_at_once_stays_open_once(opened, shards, tmp_path, monkeypatch):
    meeting, real = threading.Barrier(2), openfiles.PlainShard

    def together(path):
        meeting.wait(30)
        return real(path)

    monkeypatch.setattr(openfiles, "PlainShard", together)
    threads = [threading.Thread(target=head, args=(opened, 0)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert open_tars(tmp_path) == [str(shards[0])]


MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import penstock
loader = penstock.Loader(sys.argv[1], {"label": penstock.Label(".cls")}, 10, shuffle=True, device="numpy",
                         num_workers=1,
                         engine=penstock.EngineOptions("thread"), reading=penstock.ReadOptions(num_readers=4))
print(sum(len(batch["label"]) for batch in loader))
"""


def test_more_shards_than_a_process_may_open_can_be_read(tmp_path):
    make_shards(tmp_path, IMAGENET, samples=100, shards=100, scale=0.05)
    run = subprocess.run([sys.executable, "-c", MANY, f"{tmp_path}/*.tar"], capture_output=True, text=True, timeout=60)
    assert (run.stdout.strip(), run.returncode) == ("100", 0), run.stderr


def test_one_that_is_written_into_while_it_is_open_is_told_of_by_every_read_from_then_on(opened, shards):
    head(opened, 0)
    with shards[0].open("rb+") as file:
        file.write(b"other")
    facts = shards[0].stat()
    os.utime(shards[0], ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))  # two writes may share a tick of its clock
    for _ in range(2):
        with pytest.raises(StorageError, match="has changed since it was indexed") as caught:
            head(opened, 0)
        assert caught.value.shard == str(shards[0])
    head(opened, 1)


def test_closing_is_possible_wherever_a_collection_of_garbage_falls(shards):
    class Garbage(dict):
        def pop(self, *arguments):
            shut.close()  # as a finalizer would that runs just then, in this very thread
            return super().pop(*arguments)

    shut = ShardReader([str(path) for path in shards], [scan_shard(path) for path in shards])
    head(shut, 0)
    shut.local._open = Garbage(shut.local._open)
    reader = threading.Thread(target=head, args=(shut, 0), daemon=True)
    reader.start()
    reader.join(10)
    assert not reader.is_alive()
    shut.close()


# -- around the page cache -------------------------------------------------------------------------------------------


@pytest.fixture
def direct(shards):
    reader = ShardReader([str(path) for path in shards], [scan_shard(path) for path in shards], direct=True)
    yield reader
    reader.close()


def extents_of(data):
    """Runs anywhere in the file, its very end too, each as far into a page as its offset is."""
    end = len(data)
    places = [(0, 1), (511, 2), (4095, 2), (512, 4096), (4096, 4096), (1, end - 1), (end - 3, 3), (end - 4097, 4097)]
    return [Extent(offset, length, 4096 + offset % 4096) for offset, length in places]


def test_reads_around_the_page_cache_bring_the_same_bytes(direct, shards):
    data = shards[0].read_bytes()
    with mmap.mmap(-1, len(data) + 3 * 4096) as memory:
        for extent in extents_of(data):
            assert direct.read(0, [extent], memoryview(memory)) == extent.length
            found = memory[extent.block_offset : extent.block_offset + extent.length]
            assert found == data[extent.offset : extent.offset + extent.length]


def test_memory_that_is_not_aligned_is_filled_the_ordinary_way(direct, shards):
    data = shards[0].read_bytes()
    memory = bytearray(len(data) + 3 * 4096 + 1)
    for extent in extents_of(data):
        direct.read(0, [extent], memoryview(memory)[1:])
        found = memory[1 + extent.block_offset : 1 + extent.block_offset + extent.length]
        assert found == data[extent.offset : extent.offset + extent.length]


def test_both_descriptors_of_a_shard_are_given_back(direct, shards, tmp_path):
    head(direct, 0)
    assert len(open_tars(tmp_path)) in (1, 2)  # one where the file system has no such reads
    direct.close()
    assert open_tars(tmp_path) == []


def test_a_shard_that_ends_too_early_is_told_there_too(direct, shards):
    data = shards[0].read_bytes()
    with mmap.mmap(-1, len(data) + 4 * 4096) as memory, pytest.raises(StorageError, match="ends before"):
        direct.read(0, [Extent(0, len(data) + 4096, 0)], memoryview(memory))


def test_they_leave_nothing_in_the_page_cache(tmp_path):
    (shard,) = make_shards(tmp_path, IMAGENET, samples=4)
    if choose_method(shard, identify_storage(shard)) is not ReadMethod.DIRECT:
        pytest.skip("this file system has no reads around the page cache")
    pages = shard.stat().st_size // 4096
    reader = ShardReader([str(shard)], [scan_shard(shard)], direct=True)
    with open(shard, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        left = forget(file, mapped)
        assert left < pages // 4
        with mmap.mmap(-1, pages * 4096) as memory:
            reader.read(0, [Extent(0, pages * 4096, 0)], memoryview(memory))
        assert cached_pages(mapped) < left + pages // 4
    reader.close()


def forget(file, mapped):
    """Drop a file's pages; how many stayed. A busy kernel keeps those it is just writing, for a moment."""
    os.fsync(file.fileno())
    for _ in range(1000):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not cached_pages(mapped):
            break
    return cached_pages(mapped)


def cached_pages(mapped):
    """What mincore says."""
    found = (ctypes.c_ubyte * -(-len(mapped) // 4096))()
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), found) == 0
    return sum(flag & 1 for flag in found)


def test_a_file_that_the_server_forgot_is_opened_anew(opened, shards, monkeypatch):
    real, left = os.preadv, [2]

    def preadv(fd, buffers, offset):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    assert head(opened, 0) == shards[0].read_bytes()[:512]
    assert left == [0]
