import numpy as np
import pytest

from penstock.core.sample import Part, Sample
from penstock.shards.index import IndexBinding, OpenedShard, build_index
from penstock.shards.scan import scan_shard
from penstock.shards.tar import TarMembers
from penstock.testing import IMAGENET, MULTICAMERA, SA1B, make_shards, sample_parts

ORDERS = ["adjacent", "interleaved", "grouped", "shuffled"]
OPENED = OpenedShard(IndexBinding(100_000, 7), None, 100_000)


def members(*names):
    """Return members with these names, at the offsets 512, 1536, ... and of the lengths 10, 11, ..."""
    count = len(names)
    return TarMembers(list(names), [512 + 1024 * number for number in range(count)], [*range(10, 10 + count)])


def test_parts_are_grouped_by_sample_in_shard_order():
    index = build_index(members("b.jpg", "a.jpg", "b.txt", "a.txt"), OPENED)
    assert [index.sample(number) for number in range(len(index))] == [
        Sample("b", (Part(".jpg", 512, 10), Part(".txt", 2560, 12))),
        Sample("a", (Part(".jpg", 1536, 11), Part(".txt", 3584, 13))),
    ]
    assert index.starts.tolist() == [0, 2, 4]
    assert index.sample_ids.tolist() == [0, 0, 1, 1]
    assert [index.member_name(part) for part in range(index.part_count)] == ["b.jpg", "b.txt", "a.jpg", "a.txt"]


def test_an_index_has_the_binding_compression_length_and_other_members_of_its_shard():
    tar_members = members("a.jpg")
    tar_members.other_members.append(("link", 9, "symbolic link"))
    index = build_index(tar_members, OpenedShard(IndexBinding(50, 7), "gz", 100_000))
    assert (index.binding, index.compression, index.data_length) == (IndexBinding(50, 7), "gz", 100_000)
    assert index.other_members == [("link", 9, "symbolic link")]


def test_checksums_are_reordered_with_their_parts():
    index = build_index(members("b.jpg", "a.jpg", "b.txt"), OPENED, crcs=np.array([1, 2, 3], np.uint32))
    assert [part.crc32 for part in index.sample(0).parts] == [1, 3]
    assert [part.crc32 for part in index.sample(1).parts] == [2]


def test_an_index_without_checksums_has_none():
    assert build_index(members("a.jpg"), OPENED).part(0).crc32 is None


def test_stated_suffixes_are_used_for_pairing():
    index = build_index(members("cat.jpg", "dog_big.jpg"), OPENED, suffixes=["_big.jpg"])
    assert index.keys == ["cat", "dog"]


def test_no_members_make_no_samples():
    index = build_index(TarMembers(), OPENED)
    assert (len(index), index.part_count, index.starts.tolist()) == (0, 0, [0])
    assert index.sample_ids.tolist() == []


def test_duplicates_stay_in_the_index():
    index = build_index(members("a.jpg", "b.jpg", "a.jpg"), OPENED)
    assert [part.offset for part in index.sample(0).parts] == [512, 2560]


@pytest.mark.parametrize("preset", [SA1B, MULTICAMERA, IMAGENET], ids=lambda preset: preset.name)
@pytest.mark.parametrize("order", ORDERS)
def test_every_member_order_gives_the_same_samples_with_the_right_bytes(tmp_path, preset, order):
    [path] = make_shards(tmp_path, preset, samples=7, order=order, scale=0.05)
    index = scan_shard(path)
    data = path.read_bytes()
    found = {
        sample.key: {part.suffix: data[part.offset : part.offset + part.length] for part in sample.parts}
        for sample in map(index.sample, range(len(index)))
    }
    assert found == {preset.key(number): sample_parts(preset, number, scale=0.05) for number in range(7)}


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_compressed_shard_has_the_index_of_the_plain_one(tmp_path, compression):
    [plain] = make_shards(tmp_path, SA1B, samples=3, scale=0.05)
    [packed] = make_shards(tmp_path, SA1B, samples=3, scale=0.05, compression=compression)
    plain_index, packed_index = scan_shard(plain), scan_shard(packed)
    assert [plain_index.sample(number) for number in range(3)] == [packed_index.sample(number) for number in range(3)]
    assert (packed_index.compression, packed_index.binding.size) == (compression, packed.stat().st_size)
    assert packed_index.data_length <= plain_index.data_length == plain.stat().st_size
