"""Whether data fits into the page cache, and reads that bypass it."""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import replace

import pytest

from penstock.storage import page_cache
from penstock.storage.kinds import StorageKind
from penstock.storage.mounts import identify_storage
from penstock.storage.page_cache import ColdFile, ReadMethod, choose_method, drop_pages, is_cached

GiB = 1 << 30


@pytest.mark.parametrize(("size", "mapping"), [(0, True), (4 * GiB, True), (4 * GiB + 1, False), (100 * GiB, False)])
def test_data_fits_up_to_half_of_the_free_memory(monkeypatch, size, mapping):
    monkeypatch.setattr(page_cache, "free_bytes", lambda: 8 * GiB)
    assert page_cache.fits_in_page_cache(size) is mapping


linux = pytest.mark.skipif(sys.platform != "linux", reason="the page cache can be controlled on Linux only")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shard.tar"
    path.write_bytes(os.urandom(1 << 20))
    return path


@pytest.fixture
def disk_file(file):
    if identify_storage(file).kind.in_memory:
        pytest.skip("the temporary directory is in memory, where no read is cold")
    return file


TRIES = 200
"""Attempts: a busy kernel keeps pages for a moment while another process reads or writes them."""


@pytest.mark.parametrize("method", list(ReadMethod))
def test_every_method_reads_the_file_s_bytes(disk_file, method):
    with mmap.mmap(-1, 65536) as buffer, ColdFile(disk_file, method) as cold:
        cold.drop(random=True)
        assert cold.read_into(buffer, 8192, 65536) == 65536
        assert buffer[:] == disk_file.read_bytes()[8192 : 8192 + 65536]


@linux
def test_dropped_pages_are_not_cached(disk_file):
    with open(disk_file, "rb") as stream:
        stream.read()
        pages = range(0, 1 << 20, 1 << 16)
        assert all(is_cached(stream.fileno(), page) for page in pages)
        assert any(drop_pages(disk_file) for _ in range(TRIES))
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert not all(is_cached(stream.fileno(), page + 32768) for page in pages)


@linux
def test_pages_that_stay_cached_are_not_reported_as_dropped(disk_file):
    with open(disk_file, "rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert len(bytes(mapping)) == 1 << 20  # mapped pages survive the advice
        assert not drop_pages(disk_file)


@linux
def test_without_direct_reads_pages_are_dropped(disk_file, monkeypatch):
    monkeypatch.setattr(page_cache, "_direct_works", lambda path: False)
    storage = identify_storage(disk_file)
    assert ReadMethod.DROPPED in (choose_method(disk_file, storage) for _ in range(TRIES))


@linux
def test_a_file_whose_pages_cannot_be_dropped_is_read_warm(disk_file, monkeypatch):
    monkeypatch.setattr(page_cache, "_direct_works", lambda path: False)
    with open(disk_file, "rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert len(bytes(mapping)) == 1 << 20
        assert choose_method(disk_file, identify_storage(disk_file)) is ReadMethod.WARM


def test_memory_and_filesystems_with_their_own_cache_are_read_warm(file):
    storage = identify_storage(file)
    assert choose_method(file, replace(storage, kind=StorageKind.TMPFS)) is ReadMethod.WARM
    assert choose_method(file, replace(storage, filesystem="zfs")) is ReadMethod.WARM
