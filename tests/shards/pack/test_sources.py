"""Where samples come from: loose files and shards give the same, with memory that does not grow."""

import errno
import os
import shutil
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import DecodeError, PairingError, SettingError, ShardError, StorageError, TarError
from penstock.shards.pack import sources
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.sources import find_pack_sources, read_samples
from penstock.storage import local
from penstock.testing import MULTICAMERA, SA1B, corrupt, make_folder, make_shards, tar_bytes

KEEP = PackOptions()
SKIP = PackOptions(on_bad="skip")


def takes_of(src, options=KEEP):
    plan = make_plan(list(find_pack_sources(str(src), options)), options)
    return [take for task in plan.tasks() for take in task.selections]


def read_all(src, options=KEEP):
    return {sample.key: parts for take in takes_of(src, options) for sample, parts in read_samples(take)}


def write(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


# -- finding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", [SA1B, MULTICAMERA], ids=lambda preset: preset.name)
def test_a_folder_of_loose_files_is_one_source(tmp_path, originals, preset):
    (source,) = find_pack_sources(str(make_folder(tmp_path / "loose", preset, samples=3, scale=0.1)), KEEP)
    assert source.is_folder
    assert source.splittable
    assert sorted(source.index.keys) == sorted(originals(preset, 3))
    assert source.complete.tolist() == [0, 1, 2]


def test_files_in_nested_folders_are_keyed_by_their_path(tmp_path):
    names = ["b/0001.txt", "a/x.y/0001.txt", "a/0001.txt", "0002.txt"]
    src = write(tmp_path / "loose", {name: name.encode() for name in names})
    assert read_all(src) == {name.removesuffix(".txt"): [(".txt", name.encode())] for name in names}


def test_hidden_files_and_folders_are_left_alone(tmp_path):
    src = write(tmp_path / "loose", {"a.txt": b"1", ".DS_Store": b"2", ".git/config": b"3", "sub/.hidden.txt": b"4"})
    assert list(read_all(src)) == ["a"]


@pytest.mark.parametrize("make", ["nothing", "hidden", "folders"])
def test_a_folder_with_nothing_in_it_is_refused(tmp_path, make):
    src = tmp_path / "loose"
    (src / "sub").mkdir(parents=True)
    if make == "hidden":
        (src / ".hidden.txt").write_bytes(b"x")
    with pytest.raises(SettingError, match="nothing to pack"):
        list(find_pack_sources(str(src), KEEP))


def test_a_source_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingError, match="no such"):
        list(find_pack_sources(str(tmp_path / "missing"), KEEP))


def test_shards_in_folders_of_a_folder_are_not_taken_for_samples(tmp_path):
    make_shards(tmp_path / "src" / "train", SA1B, samples=1, scale=0.1)
    with pytest.raises(SettingError, match="sa1b-000000") as caught:
        list(find_pack_sources(str(tmp_path / "src"), KEEP))
    assert "*" in caught.value.advice


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are always Unicode there")
def test_a_file_name_that_is_not_unicode_is_refused(tmp_path):
    src = tmp_path / "loose"
    src.mkdir()
    (src / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"x")
    with pytest.raises(SettingError, match="UTF-8") as caught:
        list(find_pack_sources(str(src), KEEP))
    assert "xe9" in str(caught.value)


@pytest.mark.parametrize("pattern", ["", "*.tar", "sa1b-{000000..000002}.tar"])
def test_shards_come_in_the_order_of_their_names(tmp_path, pattern):
    paths = make_shards(tmp_path / "src", SA1B, samples=3, shards=3, scale=0.1)
    found = list(find_pack_sources(str(tmp_path / "src" / pattern), KEEP))
    assert [source.path for source in found] == [str(path) for path in paths]
    assert not any(source.is_folder for source in found)


def test_a_broken_shard_ends_it_by_name(tmp_path):
    _, bad = make_shards(tmp_path, SA1B, samples=2, shards=2, scale=0.1)
    bad.write_bytes(bad.read_bytes()[:3000])
    with pytest.raises(TarError) as caught:
        list(find_pack_sources(str(tmp_path), SKIP))
    assert caught.value.shard == str(bad)


def test_half_samples_end_it_or_are_listed(tmp_path):
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([("1.jpg", b"a"), ("1.txt", b"b"), ("2.jpg", b"c"), ("3.jpg", b"d"), ("3.txt", b"e")]))
    with pytest.raises(PairingError) as caught:
        list(find_pack_sources(str(shard), KEEP))
    assert (caught.value.shard, caught.value.member, caught.value.offset) == (str(shard), "2.jpg", 5 * 512)
    (source,) = find_pack_sources(str(shard), SKIP)
    assert source.complete.tolist() == [0, 2]
    assert [(problem.kind, problem.member) for problem in source.problems] == [("orphan", "2.jpg")]


# -- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
@pytest.mark.parametrize("order", ["adjacent", "interleaved", "grouped", "shuffled"])
def test_every_kind_of_shard_gives_whole_samples(tmp_path, originals, order, compression):
    make_shards(tmp_path, SA1B, samples=6, shards=2, order=order, compression=compression, scale=0.1)
    read = read_all(tmp_path)
    assert {key: dict(parts) for key, parts in read.items()} == originals(SA1B, 6)


def test_loose_files_give_whole_samples(tmp_path, originals):
    read = read_all(make_folder(tmp_path / "loose", SA1B, samples=4, scale=0.1))
    assert {key: dict(parts) for key, parts in read.items()} == originals(SA1B, 4)


def test_a_file_that_vanished_is_an_error_of_its_sample_only(tmp_path):
    src = write(tmp_path / "loose", {"1.txt": b"one", "2.txt": b"two"})
    (take,) = takes_of(src)
    (src / "1.txt").unlink()
    (_, first), (_, second) = read_samples(take)
    assert isinstance(first, DecodeError)
    assert (first.shard, first.member) == (str(src), "1.txt")
    assert second == [(".txt", b"two")]


@pytest.mark.parametrize("form", ["loose", "plain"])
def test_a_disk_that_fails_is_no_bad_sample(tmp_path, monkeypatch, form):
    """With on_bad='skip' its samples would be left out for good."""
    src = write(tmp_path / "loose", {"1.txt": b"one", "2.txt": b"two"})
    if form == "plain":
        src = tmp_path / "a.tar"
        src.write_bytes(tar_bytes([("1.txt", b"one"), ("2.txt", b"two")]))
    (take,) = takes_of(src)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    monkeypatch.setattr(local, "pread", fail)
    with pytest.raises(StorageError, match="cannot read: Input/output error"):
        list(read_samples(take))


def test_a_folder_that_is_gone_is_no_bad_sample(tmp_path):
    src = write(tmp_path / "loose", {"1.txt": b"one"})
    (take,) = takes_of(src)
    shutil.rmtree(src)
    with pytest.raises(StorageError, match="No such file"):
        list(read_samples(take))


def test_a_file_that_changed_its_length_is_an_error_of_its_sample_only(tmp_path):
    src = write(tmp_path / "loose", {"1.txt": b"one", "2.txt": b"two"})
    (take,) = takes_of(src)
    (src / "1.txt").write_bytes(b"other")
    (_, first), (_, second) = read_samples(take)
    assert isinstance(first, DecodeError)
    assert (first.member, first.reason) == ("1.txt", "has 5 bytes where 3 were indexed")
    assert second == [(".txt", b"two")]


@pytest.mark.parametrize("compression", [None, "gz"])
def test_a_shard_that_changed_since_it_was_indexed_is_not_read(tmp_path, compression):
    (shard,) = make_shards(tmp_path, SA1B, samples=2, compression=compression, scale=0.1)
    (take,) = takes_of(tmp_path)
    facts = shard.stat()
    os.utime(shard, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    with pytest.raises(ShardError, match="changed") as caught:
        list(read_samples(take))
    assert caught.value.shard == str(shard)
    assert caught.value.advice


def test_a_flipped_byte_of_a_packed_source_is_seen_by_its_crc(tmp_path, noise_shard, pack_here):
    packed = pack_here(noise_shard(tmp_path / "src" / "a.tar", 3, 1000), tmp_path / "packed").folder
    shard = packed / "shard-000000.tar"
    (take,) = takes_of(packed)
    facts = shard.stat()
    part = take.samples[1].parts[0]
    shard.write_bytes(corrupt.flip_bit(shard.read_bytes(), part.offset + 500))
    os.utime(shard, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    (_, first), (_, second), (_, third) = read_samples(take)
    assert isinstance(second, DecodeError)
    assert (second.shard, second.member, second.offset) == (str(shard), "00001.bin", part.offset)
    assert isinstance(first, list)
    assert isinstance(third, list)


# -- memory ------------------------------------------------------------------------------------------------------


def grouped_shard(path, samples, size_bytes=100_000):
    noise = np.random.default_rng(0).bytes(size_bytes)
    members = [(f"{number:04d}.bin", noise) for number in range(samples)]
    path.write_bytes(tar_bytes(members + [(f"{number:04d}.mask", noise) for number in range(samples)]))
    return path


def peak_of_reading(shard):
    (take,) = takes_of(shard, PackOptions(shard_bytes=1 << 30))
    tracemalloc.start()
    try:
        pairs = sum(len(parts) == 2 for _, parts in read_samples(take))
        return pairs, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_reading_a_grouped_shard_holds_one_sample_whatever_its_length(tmp_path):
    short = peak_of_reading(grouped_shard(tmp_path / "short.tar", 10))
    long = peak_of_reading(grouped_shard(tmp_path / "long.tar", 40))
    assert (short[0], long[0]) == (10, 40)
    assert long[1] < short[1] + 50_000  # half a part
    assert long[1] < 6 * 100_000


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_compressed_shard_whose_parts_lie_too_far_apart_is_refused(tmp_path, monkeypatch, compression):
    (shard,) = make_shards(tmp_path, SA1B, samples=8, order="grouped", compression=compression, scale=0.1)
    (take,) = takes_of(tmp_path)
    half = sum(sample.parts[0].length for sample in take.samples) // 2
    monkeypatch.setattr(sources, "MAX_PENDING_BYTES", half)
    with pytest.raises(ShardError, match="wait for their partners") as caught:
        list(read_samples(take))
    assert caught.value.shard == str(shard)
    assert caught.value.offset > 0
    assert "Decompress" in caught.value.advice


def test_a_compressed_shard_whose_parts_lie_close_needs_no_room(tmp_path, monkeypatch):
    make_shards(tmp_path, SA1B, samples=8, order="interleaved", compression="gz", scale=0.1)
    (take,) = takes_of(tmp_path)
    longest = max(part.length for sample in take.samples for part in sample.parts)
    monkeypatch.setattr(sources, "MAX_PENDING_BYTES", 3 * longest)
    assert sum(isinstance(parts, list) for _, parts in read_samples(take)) == 8
