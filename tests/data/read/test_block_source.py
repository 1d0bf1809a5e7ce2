"""Reading blocks of real shards."""

import dataclasses
import os

import numpy as np
import pytest

from penstock.data.order.blocks import BlockTable
from penstock.data.order.mix import Mix, share_by_weight
from penstock.data.read import block_source
from penstock.data.read.block_layout import GAP_BYTES, NO_CRC
from penstock.data.read.block_source import MixedBlockSource, ShardBlockSource
from penstock.data.read.sample_index import WantedPart, make_sample_index
from penstock.errors import PairingError, StorageError, TarError
from penstock.shards.index import IndexBinding
from penstock.shards.scan import scan_shard
from penstock.testing import IMAGENET, MULTICAMERA, SA1B, corrupt, make_shards, sample_parts, tar_bytes

ORDERS = ["adjacent", "interleaved", "grouped", "shuffled"]
BLOCK_BYTES = 20_000


def source_of(paths, wanted, block_bytes=BLOCK_BYTES):
    indexes = [scan_shard(path) for path in paths]
    complete = [np.arange(len(index)) for index in indexes]
    sample_index = make_sample_index(
        [str(path) for path in paths], indexes, complete, [WantedPart(suffixes) for suffixes in wanted]
    )
    return ShardBlockSource(sample_index, block_bytes)


def read_block(source, block):
    memory = bytearray(source.block_bytes(block))
    source.read_block(block, memoryview(memory))
    return memory


def read_parts(source, samples):
    """Return the bytes that the rows of each sample describe, with all blocks one behind the other in one arena."""
    starts, arena = [], bytearray(b"\xaa" * 100)
    for block in range(len(source.blocks)):
        starts.append(len(arena))
        arena += read_block(source, block)
    samples = np.asarray(samples, np.int64)
    rows = source.task_rows(samples, np.arange(len(samples)), np.array(starts)[source.blocks_of(samples)])
    assert rows[:, 0].tolist() == list(range(len(samples)))
    assert rows[:, 1].tolist() == samples.tolist()
    return [
        [(bytes(arena[start : start + length]), choice) for start, length, choice, _ in row[2:].reshape(-1, 4).tolist()]
        for row in rows
    ]


@pytest.fixture
def reads(monkeypatch):
    """Every preadv as (offset, bytes requested). Indexing reads too, so clear the list before reading blocks."""
    calls = []
    real = os.preadv

    def preadv(fd, buffers, offset):
        calls.append((offset, sum(map(len, buffers))))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    return calls


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("compression", [None, "gz", "zst"])
def test_rows_describe_the_right_bytes_in_every_kind_of_shard(tmp_path, order, compression):
    paths = make_shards(tmp_path, SA1B, samples=10, shards=2, order=order, compression=compression, scale=0.1)
    source = source_of(paths, [("_features.npz",), (".jpg",)])
    assert len(source.blocks) == 2 if compression else len(source.blocks) > 2
    samples = np.random.default_rng(0).permutation(10)
    for sample, found in zip(samples.tolist(), read_parts(source, samples), strict=True):
        number = next(number for number in range(10) if SA1B.key(number) == source.sample_index.key(sample))
        parts = sample_parts(SA1B, number, scale=0.1)
        assert found == [(parts["_features.npz"], 0), (parts[".jpg"], 0)]
    source.close()


def test_the_samples_of_one_task_may_lie_in_several_blocks(tmp_path):
    paths = make_shards(tmp_path, IMAGENET, samples=12, shards=3, scale=0.1)
    source = source_of(paths, [(".cls",)], 1)
    samples = np.array([11, 0, 5])
    slots = np.array([2, 0, 1])
    inside = source.task_rows(samples, slots, np.zeros(3, np.int64))[:, 2]
    rows = source.task_rows(samples, slots, np.array([10000, 20000, 30000]))
    assert rows[:, 0].tolist() == [2, 0, 1]
    assert (rows[:, 2] - inside).tolist() == [10000, 20000, 30000]


def test_parts_keep_their_offset_within_a_page_so_that_whole_pages_can_be_read(tmp_path):
    paths = make_shards(tmp_path, SA1B, samples=12, order="shuffled", scale=0.1)
    source = source_of(paths, [(".jpg",)], 1 << 16)
    index = source.sample_index.indexes[0]
    for block in range(len(source.blocks)):
        first, last = source.blocks.first_samples[block : block + 2]
        samples = np.arange(first, last)
        rows = source.task_rows(samples, samples, np.zeros(len(samples), np.int64))
        offsets = index.offsets[source.sample_index.parts[0][samples, 0]]
        assert ((rows[:, 2] - offsets) % 4096 == 0).all()
        assert source.block_bytes(block) % 4096 == 0


@pytest.mark.parametrize("order", ["adjacent", "interleaved"])
def test_a_block_of_neighbouring_samples_is_one_read(tmp_path, reads, order):
    paths = make_shards(tmp_path, IMAGENET, samples=12, order=order, scale=0.1)
    source = source_of(paths, [(".jpg",), (".cls",)], 4000)
    assert len(source.blocks) > 1
    reads.clear()
    for block in range(len(source.blocks)):
        read_block(source, block)
    assert len(reads) == len(source.blocks)
    source.close()


def far_apart(tmp_path, gap_bytes):
    """Two samples of two small parts each, with a large part that is not wanted before the second parts."""
    members = [
        ("a.cls", b"1"),
        ("b.cls", b"2"),
        ("a.bin", bytes(gap_bytes)),
        ("b.bin", b""),
        ("a.id", b"33"),
        ("b.id", b"44"),
    ]
    path = tmp_path / "apart.tar"
    path.write_bytes(tar_bytes(members))
    return source_of([path], [(".cls",), (".id",)], 1 << 30)


def test_parts_that_lie_far_apart_are_read_without_the_bytes_between_them(tmp_path, reads):
    source = far_apart(tmp_path, 2 * GAP_BYTES)
    reads.clear()
    assert [[data for data, _ in parts] for parts in read_parts(source, [0, 1])] == [[b"1", b"33"], [b"2", b"44"]]
    assert len(reads) == 2
    assert sum(count for _, count in reads) <= source.block_bytes(0) < GAP_BYTES
    source.close()


def test_a_small_gap_is_read_with_the_parts_around_it(tmp_path, reads):
    source = far_apart(tmp_path, GAP_BYTES // 2)
    reads.clear()
    assert [[data for data, _ in parts] for parts in read_parts(source, [0, 1])] == [[b"1", b"33"], [b"2", b"44"]]
    assert len(reads) == 1
    source.close()


def test_only_the_wanted_parts_are_read(tmp_path, reads):
    (path,) = make_shards(tmp_path, SA1B, samples=6, order="grouped", scale=0.3)
    source = source_of([path], [(".jpg",)], 1 << 30)
    total = sum(len(sample_parts(SA1B, number, scale=0.3)[".jpg"]) for number in range(6))
    reads.clear()
    read_bytes = source.read_block(0, memoryview(bytearray(source.block_bytes(0))))
    assert total <= read_bytes <= total + 6 * 1024
    assert read_bytes == sum(count for _, count in reads) < path.stat().st_size / 2
    source.close()


def test_the_blocks_do_not_depend_on_the_wanted_parts(tmp_path):
    paths = make_shards(tmp_path, SA1B, samples=12, shards=2, scale=0.1)
    one, both = (source_of(paths, wanted) for wanted in ([(".jpg",)], [(".jpg",), ("_features.npz",)]))
    assert one.blocks.first_samples.tolist() == both.blocks.first_samples.tolist()
    assert one.block_sizes().tolist() == both.block_sizes().tolist()
    assert both.block_sizes().sum() == sum(
        len(data) for number in range(12) for data in sample_parts(SA1B, number, scale=0.1).values()
    )


def test_a_part_wanted_by_two_fields_is_read_once(tmp_path):
    paths = make_shards(tmp_path, SA1B, samples=3, scale=0.1)
    source = source_of(paths, [("_features.npz",), ("_features.npz",)], 1 << 30)
    first, second = read_parts(source, [1])[0]
    assert first == second
    assert source.block_bytes(0) < paths[0].stat().st_size
    source.close()


def test_the_first_suffix_that_a_sample_has_is_used(tmp_path):
    path = tmp_path / "mixed.tar"
    path.write_bytes(tar_bytes([("a.cls", b"1"), ("a.id", b"11"), ("b.id", b"2"), ("c.cls", b"3")]))
    source = source_of([path], [(".cls", ".id")])
    assert read_parts(source, [0, 1, 2]) == [[(b"1", 0)], [(b"2", 1)], [(b"3", 0)]]
    source.close()


def test_empty_parts_have_no_bytes(tmp_path):
    path = tmp_path / "empty.tar"
    path.write_bytes(tar_bytes([("a.cls", b""), ("a.id", b"1"), ("b.cls", b""), ("b.id", b"")]))
    source = source_of([path], [(".cls",), (".id",)])
    assert read_parts(source, [0, 1]) == [[(b"", 0), (b"1", 0)], [(b"", 0), (b"", 0)]]
    source.close()


def test_shards_without_a_complete_sample_are_skipped(tmp_path):
    paths = make_shards(tmp_path, IMAGENET, samples=9, shards=3, scale=0.1)
    indexes = [scan_shard(path) for path in paths]
    complete = [np.arange(0), np.arange(3), np.arange(0)]
    source = ShardBlockSource(
        make_sample_index([str(path) for path in paths], indexes, complete, [WantedPart((".cls",))]), BLOCK_BYTES
    )
    assert [source.sample_index.key(sample) for sample in range(3)] == [IMAGENET.key(number) for number in (3, 4, 5)]
    assert [parts[0][0] for parts in read_parts(source, [0, 1, 2])] == [b"3", b"4", b"5"]
    source.close()


def test_samples_that_are_left_out_have_no_number(tmp_path):
    paths = make_shards(tmp_path, IMAGENET, samples=8, shards=2, scale=0.1)
    indexes = [scan_shard(path) for path in paths]
    complete = [np.array([1, 3]), np.array([0, 2, 3])]
    source = ShardBlockSource(
        make_sample_index([str(path) for path in paths], indexes, complete, [WantedPart((".cls",))]), 1
    )
    assert len(source.sample_index) == 5
    assert [source.sample_index.key(sample) for sample in range(5)] == [
        IMAGENET.key(number) for number in (1, 3, 4, 6, 7)
    ]
    assert [parts[0][0] for parts in read_parts(source, range(5))] == [b"1", b"3", b"4", b"6", b"0"]
    source.close()


def test_the_location_of_a_sample_is_its_shard_key_and_first_part(tmp_path):
    paths = make_shards(tmp_path, MULTICAMERA, samples=4, shards=2, scale=0.05)
    source = source_of(paths, [(".calib.npz",), (".back.jpg",)])
    shard, key, offset = source.sample_index.location(3)
    assert (shard, key) == (str(paths[1]), MULTICAMERA.key(3))
    back = sample_parts(MULTICAMERA, 3, scale=0.05)[".back.jpg"]
    assert paths[1].read_bytes()[offset : offset + len(back)] == back


def test_a_sample_without_a_wanted_part_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "lacking.tar"
    path.write_bytes(tar_bytes([("a.cls", b"1"), ("a.id", b"1"), ("b.cls", b"2")]))
    with pytest.raises(PairingError, match=r"sample has no \.id or \.json") as caught:
        source_of([path], [(".cls",), (".id", ".json")])
    assert (caught.value.shard, caught.value.member, caught.value.offset) == (str(path), "b", 2560)


@pytest.mark.parametrize("compression", [None, "gz"])
@pytest.mark.parametrize("change", ["size", "mtime"])
def test_a_shard_that_has_changed_is_refused_and_closed(tmp_path, compression, change):
    (path,) = make_shards(tmp_path, IMAGENET, samples=4, compression=compression, scale=0.1)
    source = source_of([path], [(".jpg",)])
    if change == "size":
        path.write_bytes(path.read_bytes() + bytes(512))
    else:
        os.utime(path, ns=(0, 1))
    memory = memoryview(bytearray(source.block_bytes(0)))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(StorageError, match="has changed since it was indexed") as caught:
            source.read_block(0, memory)
        assert caught.value.shard == str(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_shard_that_is_truncated_while_open_is_an_error_with_shard_and_offset(tmp_path):
    (path,) = make_shards(tmp_path, IMAGENET, samples=12, scale=0.1)
    source = source_of([path], [(".jpg",), (".cls",)], 4000)
    read_block(source, 0)
    cut = path.stat().st_size // 2
    os.truncate(path, cut)
    half = next(
        b
        for b in range(len(source.blocks))
        if source.sample_index.location(source.blocks.first_samples[b + 1])[2] > cut
    )
    with pytest.raises(StorageError, match="ends before its index says") as caught:
        read_block(source, half)
    assert (caught.value.shard, caught.value.offset, caught.value.stage) == (str(path), cut, "read")
    source.close()


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_truncated_compressed_shard_is_an_error_with_shard_and_offset(tmp_path, compression):
    (path,) = make_shards(tmp_path, SA1B, samples=12, compression=compression, scale=0.1)
    index = scan_shard(path)
    path.write_bytes(corrupt.truncate(path.read_bytes(), path.stat().st_size // 2))
    facts = path.stat()
    index = dataclasses.replace(index, binding=IndexBinding(facts.st_size, facts.st_mtime_ns))
    source = ShardBlockSource(
        make_sample_index([str(path)], [index], [np.arange(12)], [WantedPart(("_features.npz",))]), BLOCK_BYTES
    )
    with pytest.raises(TarError, match="cut short") as caught:
        read_block(source, 0)
    assert caught.value.shard == str(path)
    assert 0 < caught.value.offset < index.data_length


def test_a_read_error_names_shard_and_offset(tmp_path, monkeypatch):
    (path,) = make_shards(tmp_path, IMAGENET, samples=4, scale=0.1)
    source = source_of([path], [(".jpg",)])

    def preadv(fd, buffers, offset):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(StorageError, match="cannot read: Input/output error") as caught:
        read_block(source, 0)
    assert (caught.value.shard, caught.value.offset) == (str(path), 512)
    source.close()


def test_a_short_read_is_continued(tmp_path, monkeypatch):
    (path,) = make_shards(tmp_path, IMAGENET, samples=4, scale=0.1)
    source = source_of([path], [(".jpg",)], 1 << 30)
    expected = read_block(source, 0)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:700]], offset))
    assert read_block(source, 0) == expected
    source.close()


def test_a_limited_number_of_layouts_is_kept_and_others_are_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(block_source, "MAX_LAYOUT_GROUPS", 2)
    monkeypatch.setattr(block_source, "GROUP_BLOCKS", 2)
    paths = make_shards(tmp_path, IMAGENET, samples=10, scale=0.1)
    source = source_of(paths, [(".cls",)], 1)
    for _ in range(2):
        assert [parts[0][0] for parts in read_parts(source, range(10))] == [
            b"%d" % (number % 7) for number in range(10)
        ]
    assert len(source.blocks) == 10
    assert source._layouts.cache_info().currsize == 2
    source.close()


def test_the_layouts_of_neighbouring_blocks_are_made_together(tmp_path):
    paths = make_shards(tmp_path, IMAGENET, samples=40, shards=2, scale=0.1)
    source = source_of(paths, [(".cls",), (".jpg",)], 1)
    read_parts(source, range(40))
    assert len(source.blocks) == 40
    assert source._layouts.cache_info().misses == 2 * 3  # 20 blocks a shard, 8 at a time
    source.close()


def test_rows_have_the_crc_of_parts_where_the_index_has_it(tmp_path):
    paths = make_shards(tmp_path, IMAGENET, samples=4, shards=2, scale=0.1)
    plain, packed = (scan_shard(path) for path in paths)
    packed = dataclasses.replace(packed, crcs=np.arange(packed.part_count, dtype=np.uint32) + (1 << 31))
    dataset = make_sample_index(
        [str(path) for path in paths],
        [plain, packed],
        [np.arange(2)] * 2,
        [WantedPart((".cls",)), WantedPart((".jpg",))],
    )
    rows = ShardBlockSource(dataset, BLOCK_BYTES).task_rows(
        np.array([1, 3]), np.zeros(2, np.int64), np.zeros(2, np.int64)
    )
    wanted = [(1 << 31) + part_number(packed, 1, suffix) for suffix in (".cls", ".jpg")]
    assert rows[:, 5::4].tolist() == [[NO_CRC, NO_CRC], wanted]


def part_number(index, sample, suffix):
    """Return the position of a part in the index's columns."""
    return next(part for part in range(index.part_count) if index.member_name(part) == index.keys[sample] + suffix)


def test_the_location_of_a_part_is_its_shard_member_and_offset(tmp_path):
    paths = make_shards(tmp_path, MULTICAMERA, samples=4, shards=2, scale=0.05)
    source = source_of(paths, [(".back.jpg",), (".calib.npz",)])
    shard, member, offset = source.sample_index.location(3, ".calib.npz")
    assert (shard, member) == (str(paths[1]), MULTICAMERA.key(3) + ".calib.npz")
    calibration = sample_parts(MULTICAMERA, 3, scale=0.05)[".calib.npz"]
    assert paths[1].read_bytes()[offset : offset + len(calibration)] == calibration


def test_close_closes_all_descriptors(tmp_path):
    paths = make_shards(tmp_path, IMAGENET, samples=4, shards=4, scale=0.1)
    source = source_of(paths, [(".jpg",)])
    before = len(os.listdir("/proc/self/fd"))
    for block in range(4):
        read_block(source, block)
    assert len(os.listdir("/proc/self/fd")) == before + 4
    source.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_mixed_source_reads_the_block_of_each_visit():
    class Blocks:
        workers_read = False

        def block_sizes(self):
            return np.array([10, 20, 30])

        def block_bytes(self, block):
            return 100 + block

        def read_block(self, block, into):
            return 200 + block

        def task_rows(self, samples, slots, block_starts):
            return np.stack((slots, samples, block_starts), axis=1)

    # Two groups: one of two blocks of two samples, one of a single sample, which is repeated and so has two visits.
    table = BlockTable(np.array([0, 2, 4, 5]), np.zeros(3, np.int64))
    mix = Mix(table, np.array([0, 2, 3]), share_by_weight(5, [1, 1]))
    assert (mix.samples.tolist(), mix.visited_blocks.tolist()) == ([3, 2], [0, 1, 2, 2])
    source = MixedBlockSource(Blocks(), mix)
    assert source.blocks_of(np.array([0, 3, 4, 5])).tolist() == [0, 1, 2, 3]
    assert (source.block_bytes(3), source.read_block(3, memoryview(b"")), source.block_sizes()[3]) == (102, 202, 30)
    rows = source.task_rows(np.array([5, 1]), np.array([7, 8]), np.array([0, 64]))
    assert rows.tolist() == [[7, 5, 0], [8, 1, 64]]
