"""Local files are read at any offset by any thread, and opened again when a file server has forgotten them."""

import errno
import os
import threading

import pytest

from penstock.errors import StorageError
from penstock.storage import local
from penstock.storage.local import LocalFile

DATA = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize(("offset", "length"), [(0, 10), (100, 0), (5000, 240), (0, len(DATA)), (10239, 1)])
def test_a_read_returns_the_bytes_at_its_offset(path, offset, length):
    with LocalFile(path) as file:
        assert file.read_at(offset, length) == DATA[offset : offset + length]


def test_a_read_is_short_only_at_the_end_of_the_file(path):
    with LocalFile(path) as file:
        assert file.read_at(len(DATA) - 3, 100) == DATA[-3:]
        assert file.read_at(len(DATA), 100) == b""
        assert file.read_at(len(DATA) + 10**12, 100) == b""


def test_a_short_system_call_is_continued(path, monkeypatch):
    whole = local.pread
    monkeypatch.setattr(local, "pread", lambda fd, length, offset: whole(fd, min(length, 7), offset))
    with LocalFile(path) as file:
        assert file.read_at(3, 100) == DATA[3:103]
        assert file.read_at(len(DATA) - 10, 100) == DATA[-10:]


def test_size_and_mtime_are_those_at_opening(path):
    os.utime(path, ns=(0, 1_234_567_891))
    with LocalFile(path) as file:
        path.write_bytes(b"other")
        assert (file.size, file.mtime_ns) == (len(DATA), 1_234_567_891)
        assert repr(file) == f"LocalFile({str(path)!r}, size={len(DATA)})"


def test_threads_read_one_file_concurrently(path):
    wrong = []

    def read(file, start):
        for offset in range(start, len(DATA) - 16, 64):
            if file.read_at(offset, 16) != DATA[offset : offset + 16]:
                wrong.append(offset)

    with LocalFile(path) as file:
        threads = [threading.Thread(target=read, args=(file, start)) for start in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_missing_file_is_an_error_with_its_path(tmp_path):
    with pytest.raises(StorageError, match="cannot open") as caught:
        LocalFile(tmp_path / "none.tar")
    assert caught.value.where() == {"shard": str(tmp_path / "none.tar"), "stage": "open"}


def test_a_directory_is_refused_and_its_descriptor_closed(tmp_path):
    with LocalFile(__file__) as before:
        free = before.fd
    with pytest.raises(StorageError) as caught:
        LocalFile(tmp_path)
    assert caught.value.shard == str(tmp_path)
    with LocalFile(__file__) as after:
        assert after.fd == free


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
def test_a_named_pipe_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(StorageError, match="not a regular file"):
        LocalFile(tmp_path / "pipe.tar")


def test_closing_twice_is_harmless_and_a_later_read_is_a_storage_error(path):
    file = LocalFile(path)
    file.close()
    file.close()
    with pytest.raises(StorageError, match="cannot read") as caught:
        file.read_at(17, 5)
    assert caught.value.where() == {"shard": str(path), "offset": 17, "stage": "read"}


def failing(code, times, real=local.pread):
    """Return a pread that fails so many times, as on a failing file server; `failed` counts the failures."""

    def read(fd, length, offset):
        if read.failed < times:
            read.failed += 1
            raise OSError(code, os.strerror(code))
        return real(fd, length, offset)

    read.failed = 0
    return read


def test_a_stale_file_is_opened_again(path, monkeypatch):
    with LocalFile(path) as file:
        fd = file.fd
        monkeypatch.setattr(local, "pread", failing(errno.ESTALE, local.MAX_REOPENS))
        assert file.read_at(0, len(DATA)) == DATA
        assert file.fd == fd


def test_a_file_that_stays_stale_is_an_error(path, monkeypatch):
    with LocalFile(path) as file:
        read = failing(errno.ESTALE, 100)
        monkeypatch.setattr(local, "pread", read)
        with pytest.raises(StorageError, match="file server no longer knows this file"):
            file.read_at(0, 5)
        assert read.failed == local.MAX_REOPENS + 1


def test_a_stale_file_that_was_replaced_is_not_read(path, tmp_path, monkeypatch):
    with LocalFile(path) as file:
        other = tmp_path / "other"
        other.write_bytes(DATA[::-1])
        os.utime(other, ns=(0, 1))
        os.replace(other, path)
        monkeypatch.setattr(local, "pread", failing(errno.ESTALE, 1))
        with pytest.raises(StorageError, match="has changed since it was opened"):
            file.read_at(0, 5)


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT])
def test_an_unreachable_server_is_an_error_without_retries(path, monkeypatch, code):
    with LocalFile(path) as file:
        read = failing(code, 100)
        monkeypatch.setattr(local, "pread", read)
        with pytest.raises(StorageError, match="does not answer") as caught:
            file.read_at(17, 5)
        assert caught.value.where() == {"shard": str(path), "offset": 17, "stage": "read"}
        assert read.failed == 1
