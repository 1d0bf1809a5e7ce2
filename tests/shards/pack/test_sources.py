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


def selections_of(src, options=KEEP):
    plan = make_plan(list(find_pack_sources(str(src), options)), options)
    return [selection for task in plan.tasks() for selection in task.selections]


def read_all(src, options=KEEP):
    return {sample.key: parts for selection in selections_of(src, options) for sample, parts in read_samples(selection)}


def write_files(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


# -- finding sources ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", [SA1B, MULTICAMERA], ids=lambda preset: preset.name)
def test_a_folder_of_loose_files_is_one_source(tmp_path, originals, preset):
    (source,) = find_pack_sources(str(make_folder(tmp_path / "loose", preset, samples=3, scale=0.1)), KEEP)
    assert source.is_folder
    assert source.splittable
    assert sorted(source.index.keys) == sorted(originals(preset, 3))
    assert source.complete.tolist() == [0, 1, 2]


def test_keys_of_files_in_nested_folders_contain_the_folders(tmp_path):
    names = ["b/0001.txt", "a/x.y/0001.txt", "a/0001.txt", "0002.txt"]
    src = write_files(tmp_path / "loose", {name: name.encode() for name in names})
    assert read_all(src) == {name.removesuffix(".txt"): [(".txt", name.encode())] for name in names}


def test_hidden_files_and_folders_are_ignored(tmp_path):
    src = write_files(
        tmp_path / "loose", {"a.txt": b"1", ".DS_Store": b"2", ".git/config": b"3", "sub/.hidden.txt": b"4"}
    )
    assert list(read_all(src)) == ["a"]


@pytest.mark.parametrize("content", ["nothing", "a hidden file", "an empty folder"])
def test_a_folder_without_files_is_refused(tmp_path, content):
    src = tmp_path / "loose"
    src.mkdir()
    if content == "a hidden file":
        (src / ".hidden.txt").write_bytes(b"x")
    elif content == "an empty folder":
        (src / "sub").mkdir()
    with pytest.raises(SettingError, match="nothing to pack"):
        list(find_pack_sources(str(src), KEEP))


def test_a_source_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(SettingError, match="no such"):
        list(find_pack_sources(str(tmp_path / "missing"), KEEP))


def test_a_folder_with_shards_in_a_subfolder_is_refused(tmp_path):
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
def test_shards_are_ordered_by_name(tmp_path, pattern):
    paths = make_shards(tmp_path / "src", SA1B, samples=3, shards=3, scale=0.1)
    found = list(find_pack_sources(str(tmp_path / "src" / pattern), KEEP))
    assert [source.path for source in found] == [str(path) for path in paths]
    assert not any(source.is_folder for source in found)


def test_a_broken_shard_is_an_error_with_its_name(tmp_path):
    _, bad = make_shards(tmp_path, SA1B, samples=2, shards=2, scale=0.1)
    bad.write_bytes(bad.read_bytes()[:3000])
    with pytest.raises(TarError) as caught:
        list(find_pack_sources(str(tmp_path), SKIP))
    assert caught.value.shard == str(bad)


def test_incomplete_samples_are_an_error_or_are_listed_with_skip(tmp_path):
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_bytes([("1.jpg", b"a"), ("1.txt", b"b"), ("2.jpg", b"c"), ("3.jpg", b"d"), ("3.txt", b"e")]))
    with pytest.raises(PairingError) as caught:
        list(find_pack_sources(str(shard), KEEP))
    assert (caught.value.shard, caught.value.member, caught.value.offset) == (str(shard), "2.jpg", 5 * 512)
    (source,) = find_pack_sources(str(shard), SKIP)
    assert source.complete.tolist() == [0, 2]
    assert [(problem.kind, problem.member) for problem in source.problems] == [("orphan", "2.jpg")]


# -- reading samples ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gz", "zst"])
@pytest.mark.parametrize("order", ["adjacent", "interleaved", "grouped", "shuffled"])
def test_every_order_and_compression_gives_complete_samples(tmp_path, originals, order, compression):
    make_shards(tmp_path, SA1B, samples=6, shards=2, order=order, compression=compression, scale=0.1)
    read = read_all(tmp_path)
    assert {key: dict(parts) for key, parts in read.items()} == originals(SA1B, 6)


def test_loose_files_give_complete_samples(tmp_path, originals):
    read = read_all(make_folder(tmp_path / "loose", SA1B, samples=4, scale=0.1))
    assert {key: dict(parts) for key, parts in read.items()} == originals(SA1B, 4)


def test_a_file_that_was_removed_makes_only_its_sample_bad(tmp_path):
    src = write_files(tmp_path / "loose", {"1.txt": b"one", "2.txt": b"two"})
    (selection,) = selections_of(src)
    (src / "1.txt").unlink()
    (_, first), (_, second) = read_samples(selection)
    assert isinstance(first, DecodeError)
    assert (first.shard, first.member) == (str(src), "1.txt")
    assert second == [(".txt", b"two")]


@pytest.mark.parametrize("form", ["loose", "plain"])
def test_an_error_of_the_disk_is_raised_instead_of_making_samples_bad(tmp_path, monkeypatch, form):
    # with on_bad="skip", bad samples are left out of the pack for good
    src = write_files(tmp_path / "loose", {"1.txt": b"one", "2.txt": b"two"})
    if form == "plain":
        src = tmp_path / "a.tar"
        src.write_bytes(tar_bytes([("1.txt", b"one"), ("2.txt", b"two")]))
    (selection,) = selections_of(src)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    monkeypatch.setattr(local, "pread", fail)
    with pytest.raises(StorageError, match="cannot read: Input/output error"):
        list(read_samples(selection))


def test_a_folder_that_was_removed_is_a_storage_error_instead_of_making_samples_bad(tmp_path):
    src = write_files(tmp_path / "loose", {"1.txt": b"one"})
    (selection,) = selections_of(src)
    shutil.rmtree(src)
    with pytest.raises(StorageError, match="No such file"):
        list(read_samples(selection))


def test_a_file_whose_length_changed_makes_only_its_sample_bad(tmp_path):
    src = write_files(tmp_path / "loose", {"1.txt": b"one", "2.txt": b"two"})
    (selection,) = selections_of(src)
    (src / "1.txt").write_bytes(b"other")
    (_, first), (_, second) = read_samples(selection)
    assert isinstance(first, DecodeError)
    assert (first.member, first.reason) == ("1.txt", "has 5 bytes where 3 were indexed")
    assert second == [(".txt", b"two")]


@pytest.mark.parametrize("compression", [None, "gz"])
def test_a_shard_that_changed_since_it_was_indexed_is_an_error(tmp_path, compression):
    (shard,) = make_shards(tmp_path, SA1B, samples=2, compression=compression, scale=0.1)
    (selection,) = selections_of(tmp_path)
    status = shard.stat()
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(ShardError, match="changed") as caught:
        list(read_samples(selection))
    assert caught.value.shard == str(shard)
    assert caught.value.advice


def test_a_flipped_bit_in_a_packed_source_is_found_by_its_crc(tmp_path, noise_shard, pack_in_process):
    packed = pack_in_process(noise_shard(tmp_path / "src" / "a.tar", 3, 1000), tmp_path / "packed").folder
    shard = packed / "shard-000000.tar"
    (selection,) = selections_of(packed)
    status = shard.stat()
    part = selection.samples[1].parts[0]
    shard.write_bytes(corrupt.flip_bit(shard.read_bytes(), part.offset + 500))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    (_, first), (_, second), (_, third) = read_samples(selection)
    assert isinstance(second, DecodeError)
    assert (second.shard, second.member, second.offset) == (str(shard), "00001.bin", part.offset)
    assert isinstance(first, list)
    assert isinstance(third, list)


# -- memory ------------------------------------------------------------------------------------------------------


def make_grouped_shard(path, samples, size_bytes=100_000):
    """Write a shard in which the second parts of all samples follow the first parts of all samples."""
    noise = np.random.default_rng(0).bytes(size_bytes)
    members = [(f"{number:04d}.bin", noise) for number in range(samples)]
    path.write_bytes(tar_bytes(members + [(f"{number:04d}.mask", noise) for number in range(samples)]))
    return path


def read_and_measure(shard):
    """Return the number of samples with both parts, and the peak memory of reading them in bytes."""
    (selection,) = selections_of(shard, PackOptions(shard_bytes=1 << 30))
    tracemalloc.start()
    try:
        complete = sum(len(parts) == 2 for _, parts in read_samples(selection))
        return complete, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_memory_for_reading_a_plain_grouped_shard_does_not_grow_with_its_length(tmp_path):
    short_samples, short_peak = read_and_measure(make_grouped_shard(tmp_path / "short.tar", 10))
    long_samples, long_peak = read_and_measure(make_grouped_shard(tmp_path / "long.tar", 40))
    assert (short_samples, long_samples) == (10, 40)
    assert long_peak < short_peak + 50_000  # half a part
    assert long_peak < 6 * 100_000


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_a_compressed_shard_whose_parts_lie_too_far_apart_is_an_error(tmp_path, monkeypatch, compression):
    (shard,) = make_shards(tmp_path, SA1B, samples=8, order="grouped", compression=compression, scale=0.1)
    (selection,) = selections_of(tmp_path)
    half = sum(sample.parts[0].length for sample in selection.samples) // 2
    monkeypatch.setattr(sources, "MAX_PENDING_BYTES", half)
    with pytest.raises(ShardError, match="held in memory") as caught:
        list(read_samples(selection))
    assert caught.value.shard == str(shard)
    assert caught.value.offset > 0
    assert "Decompress" in caught.value.advice


def test_a_compressed_shard_whose_parts_lie_close_together_is_read_within_the_limit(tmp_path, monkeypatch):
    make_shards(tmp_path, SA1B, samples=8, order="interleaved", compression="gz", scale=0.1)
    (selection,) = selections_of(tmp_path)
    largest_part = max(part.length for sample in selection.samples for part in sample.parts)
    monkeypatch.setattr(sources, "MAX_PENDING_BYTES", 3 * largest_part)
    assert sum(isinstance(parts, list) for _, parts in read_samples(selection)) == 8
