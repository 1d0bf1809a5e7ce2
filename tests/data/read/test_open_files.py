"""The open files of a process: few at a time, and none closed while it is read."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from penstock.data.read import open_files
from penstock.data.read.block_layout import Extent
from penstock.data.read.shard_reader import ShardReader
from penstock.errors import StorageError
from penstock.shards.scan import scan_shard
from penstock.testing import IMAGENET, make_shards

SHARDS = 6


@pytest.fixture
def shards(tmp_path):
    return make_shards(tmp_path, IMAGENET, samples=SHARDS, shards=SHARDS, scale=0.1)


def reader_of(shards, **settings):
    return ShardReader([str(path) for path in shards], [scan_shard(path) for path in shards], **settings)


@pytest.fixture
def reader(shards, monkeypatch):
    """A reader that keeps at most two shards open."""
    monkeypatch.setattr(open_files, "MAX_OPEN_FILES", 2)
    reader = reader_of(shards)
    yield reader
    reader.close()


@pytest.fixture
def opened_paths(monkeypatch):
    """The paths that are opened, in order."""
    paths, real = [], open_files.PlainShard
    monkeypatch.setattr(open_files, "PlainShard", lambda path: paths.append(path) or real(path))
    return paths


def head(reader, shard):
    into = bytearray(512)
    reader.read(shard, [Extent(0, 512, 0)], memoryview(into))
    return bytes(into)


def open_tars(folder):
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(target for target in targets if target.startswith(str(folder)))


def test_a_limited_number_of_shards_stays_open_and_all_are_read_correctly(reader, shards, tmp_path):
    for shard, path in enumerate(shards):
        assert head(reader, shard) == path.read_bytes()[:512]
        assert len(open_tars(tmp_path)) == min(2, shard + 1)


def test_the_least_recently_used_shard_is_closed(reader, opened_paths, shards, tmp_path):
    for shard in (0, 1, 0, 2, 0):
        head(reader, shard)
    assert opened_paths == [str(shards[shard]) for shard in (0, 1, 2)]
    assert open_tars(tmp_path) == sorted(str(shards[shard]) for shard in (0, 2))


class PausedReads:
    """Two threads that read shard 0, and pause in the middle until `finish` is called."""

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


def test_a_shard_that_is_being_read_stays_open_whatever_else_is_opened(reader, shards, tmp_path, monkeypatch):
    reads = PausedReads(reader, monkeypatch)
    for shard in range(1, SHARDS):
        head(reader, shard)
    assert str(shards[0]) in open_tars(tmp_path)
    reads.finish()
    assert reads.results == [shards[0].read_bytes()[:512]] * 2
    assert len(open_tars(tmp_path)) == 2


def test_a_shard_that_is_being_read_is_closed_by_its_last_reader(reader, shards, tmp_path, monkeypatch):
    reads = PausedReads(reader, monkeypatch)
    head(reader, 1)
    reader.close()
    assert open_tars(tmp_path) == [str(shards[0])]
    reads.finish()
    assert reads.results == [shards[0].read_bytes()[:512]] * 2
    assert open_tars(tmp_path) == []
    assert head(reader, 0) == shards[0].read_bytes()[:512]


def test_a_shard_that_two_threads_open_at_once_stays_open_once(reader, shards, tmp_path, monkeypatch):
    barrier, real = threading.Barrier(2), open_files.PlainShard

    def open_together(path):
        barrier.wait(30)
        return real(path)

    monkeypatch.setattr(open_files, "PlainShard", open_together)
    threads = [threading.Thread(target=head, args=(reader, 0)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert open_tars(tmp_path) == [str(shards[0])]


MANY_SHARDS = """
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
    command = [sys.executable, "-c", MANY_SHARDS, f"{tmp_path}/*.tar"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.stdout.strip(), run.returncode) == ("100", 0), run.stderr


def test_every_read_of_a_shard_that_was_changed_while_open_is_an_error(reader, shards):
    head(reader, 0)
    with shards[0].open("rb+") as file:
        file.write(b"other")
    facts = shards[0].stat()
    os.utime(shards[0], ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))  # two writes may get the same time stamp
    for _ in range(2):
        with pytest.raises(StorageError, match="has changed since it was indexed") as caught:
            head(reader, 0)
        assert caught.value.shard == str(shards[0])
    head(reader, 1)


def test_a_finalizer_may_close_the_files_in_the_middle_of_a_read(shards):
    class ClosingDict(dict):
        def pop(self, *arguments):
            reader.close()  # as a finalizer would that runs at this moment, in this thread
            return super().pop(*arguments)

    reader = reader_of(shards)
    head(reader, 0)
    reader.local._open = ClosingDict(reader.local._open)
    thread = threading.Thread(target=head, args=(reader, 0), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    reader.close()


def test_both_descriptors_of_a_directly_read_shard_are_closed(shards, tmp_path):
    reader = reader_of(shards, direct=True)
    head(reader, 0)
    assert len(open_tars(tmp_path)) in (1, 2)  # 1 where the file system does not support direct reads
    reader.close()
    assert open_tars(tmp_path) == []


def test_a_file_with_a_stale_handle_is_opened_again(reader, shards, monkeypatch):
    real, failures = os.preadv, [2]

    def preadv(fd, buffers, offset):
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    assert head(reader, 0) == shards[0].read_bytes()[:512]
    assert failures == [0]
