"""Reads around the page cache. Other reads are tested where their shards are: files, copies, object stores."""

import ctypes
import mmap
import os

import numpy as np
import pytest

from penstock.data.read.block_layout import Extent
from penstock.data.read.shard_reader import ShardReader
from penstock.errors import StorageError
from penstock.shards.scan import scan_shard
from penstock.storage.mounts import identify_storage
from penstock.storage.page_cache import ReadMethod, choose_method
from penstock.testing import IMAGENET, make_shards


@pytest.fixture
def shard(tmp_path):
    (shard,) = make_shards(tmp_path, IMAGENET, samples=1, shards=1, scale=0.1)
    return shard


@pytest.fixture
def reader(shard):
    reader = ShardReader([str(shard)], [scan_shard(shard)], direct=True)
    yield reader
    reader.close()


def extents_of(data):
    """Return ranges all over the file and at its very end, each as far into a page as its offset is."""
    end = len(data)
    ranges = [(0, 1), (511, 2), (4095, 2), (512, 4096), (4096, 4096), (1, end - 1), (end - 3, 3), (end - 4097, 4097)]
    return [Extent(offset, length, 4096 + offset % 4096) for offset, length in ranges]


def test_reads_around_the_page_cache_return_the_same_bytes(reader, shard):
    data = shard.read_bytes()
    with mmap.mmap(-1, len(data) + 3 * 4096) as memory:
        for extent in extents_of(data):
            assert reader.read(0, [extent], memoryview(memory)) == extent.length
            found = memory[extent.block_offset : extent.block_offset + extent.length]
            assert found == data[extent.offset : extent.offset + extent.length]


def test_memory_that_is_not_aligned_is_filled_by_ordinary_reads(reader, shard):
    data = shard.read_bytes()
    memory = bytearray(len(data) + 3 * 4096 + 1)
    for extent in extents_of(data):
        reader.read(0, [extent], memoryview(memory)[1:])
        found = memory[1 + extent.block_offset : 1 + extent.block_offset + extent.length]
        assert found == data[extent.offset : extent.offset + extent.length]


def test_a_shard_that_ends_too_early_is_an_error_of_direct_reads_too(reader, shard):
    data = shard.read_bytes()
    with mmap.mmap(-1, len(data) + 4 * 4096) as memory, pytest.raises(StorageError, match="ends before"):
        reader.read(0, [Extent(0, len(data) + 4096, 0)], memoryview(memory))


def test_direct_reads_leave_nothing_in_the_page_cache(tmp_path):
    (shard,) = make_shards(tmp_path, IMAGENET, samples=4)
    if choose_method(shard, identify_storage(shard)) is not ReadMethod.DIRECT:
        pytest.skip("this file system has no reads around the page cache")
    pages = shard.stat().st_size // 4096
    reader = ShardReader([str(shard)], [scan_shard(shard)], direct=True)
    with open(shard, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        before = drop_cached_pages(file, mapped)
        assert before < pages // 4
        with mmap.mmap(-1, pages * 4096) as memory:
            reader.read(0, [Extent(0, pages * 4096, 0)], memoryview(memory))
        assert cached_pages(mapped) < before + pages // 4
    reader.close()


def drop_cached_pages(file, mapped):
    """Drop a file's pages, and return how many stayed: the kernel keeps those that it is writing for a moment."""
    os.fsync(file.fileno())
    for _ in range(1000):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not cached_pages(mapped):
            break
    return cached_pages(mapped)


def cached_pages(mapped):
    """Return the number of a file's pages in memory, by mincore."""
    found = (ctypes.c_ubyte * -(-len(mapped) // 4096))()
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), found) == 0
    return sum(flag & 1 for flag in found)
