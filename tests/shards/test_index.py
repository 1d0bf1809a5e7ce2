import gzip
import io
import tarfile

import numpy as np
import pytest

from penstock import Loader, Text
from penstock.core.sample import Part, Sample
from penstock.shards.check import ShardStructure, check_shards
from penstock.shards.codecs import zstd
from penstock.shards.index import IndexBinding, OpenedShard, build_index
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.sources import find_pack_sources, read_samples
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
    index = build_index(members("cat.jpg", "dog_big.jpg"), OPENED, stated=["_big.jpg"])
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


# -- ignored members, hard links, other splits ---------------------------------------------------------------------


def test_ignored_members_are_listed_and_their_checksums_dropped():
    names = ["a/", "a/0.jpg", "a/.DS_Store", "a/1.jpg", "README"]
    index = build_index(members(*names), OPENED, crcs=np.arange(5, dtype=np.uint32))
    assert (index.keys, index.offsets.tolist(), index.crcs.tolist()) == (["a/0", "a/1"], [1536, 3584], [1, 3])
    assert index.other_members == [
        ("a/", 0, "ignored: directory"),
        ("a/.DS_Store", 2048, "ignored: macOS metadata"),
        ("README", 4096, "ignored: no extension"),
    ]


def test_stated_suffixes_split_the_names_of_a_stored_index_again():
    names = ["0.png", "0_mask.png", "1.png", "1_mask.png"]
    index = build_index(members(*names), OPENED, crcs=np.arange(4, dtype=np.uint32))
    assert index.keys == ["0", "0_mask", "1", "1_mask"]
    again = index.paired_by([".png", "_mask.png"])
    assert (again.keys, again.suffixes, again.crcs.tolist()) == (["0", "1"], [".png", "_mask.png"], [0, 1, 2, 3])


def test_names_are_split_again_although_the_index_has_all_stated_suffixes_already():
    index = build_index(members("0.jpg", "0.cls", "0_flip.jpg"), OPENED)
    assert (index.keys, index.suffixes) == (["0"], [".jpg", ".cls", "_flip.jpg"])
    assert index.paired_by([".jpg"]).keys == ["0", "0_flip"]


def test_an_index_that_fits_the_stated_suffixes_is_used_as_it_is():
    index = build_index(members("0.jpg", "0_features.npz", "1.jpg", "1_features.npz"), OPENED)
    assert index.paired_by([".jpg", "_features.npz"]) is index
    assert index.paired_by([".jpeg|.png"]) is index
    assert index.paired_by(()) is index


def test_unreadable_parts_stay_unreadable_when_names_are_split_again():
    found = members("0.png", "0_mask.png")
    found.lengths[1], found.unreadable[1536] = 0, "is a GNU sparse file"
    index = build_index(found, OPENED).paired_by(["_mask.png"])
    assert index.sample(0).parts == (Part(".png", 512, 10), Part("_mask.png", 1536, 0, None, "is a GNU sparse file"))


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.LNKTYPE, target
    return info


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.zst"])
def test_a_hard_link_is_delivered_with_the_data_of_its_target(tmp_path, ending):
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name in ("0.txt", "1.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(name[:1].encode() * 3))
        tar.addfile(link("2.txt", "0.txt"))
        tar.addfile(link("3.txt", "2.txt"))
    path = tmp_path / f"a{ending}"
    write = {".tar": bytes, ".tar.gz": gzip.compress, ".tar.zst": zstd.compress}[ending]
    path.write_bytes(write(plain.getvalue()))
    loader = Loader(str(path), {"text": Text(".txt")}, 4, num_workers=0, device="numpy")
    [batch] = loader
    loader.close()
    assert dict(zip(batch["__key__"], batch["text"], strict=True)) == {"0": "000", "1": "111", "2": "000", "3": "000"}
    for event in check_shards([str(path)], decode=True, workers=1):
        assert (event.flaws if isinstance(event, ShardStructure) else tuple(event[1])) == ()
    [source] = find_pack_sources(str(path), PackOptions())
    assert [parts for _, parts in read_samples(source.select(range(4)))] == [[(".txt", b"000")]] * 3 + [
        [(".txt", b"111")]
    ]
