"""Every kind of flaw is found and reported, sound shards have none, and no more data is read than necessary."""

import dataclasses
import importlib
import json
import os
from itertools import chain

import numpy as np
import pytest
from tests.support import hostile

from penstock.shards import check
from penstock.shards.check import CheckTask, ShardFlaw, ShardStructure, check_shards, run_check_task
from penstock.shards.codecs import compress, encode_jpeg, encode_npy
from penstock.shards.index import index_path_beside, load_index, save_index
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.sources import find_pack_sources
from penstock.shards.pack.write import WORK_FOLDER, pack_shard
from penstock.shards.scan import index_shard, scan_shard
from penstock.storage import local
from penstock.testing import PRESETS, SA1B, corrupt, make_image, make_shards, tar_bytes
from penstock.testing.shard_maker import write_tar

JPEG = encode_jpeg(make_image(40, 60, seed=1), 90)
NPY = encode_npy(np.arange(500, dtype=np.float32))


def run(shards, **options):
    """Check the shards; return structures by shard, the flaws of structures and tasks together, and the tasks."""
    options = {"decode": False, "workers": 1, **options}
    events = list(check_shards([str(shard) for shard in shards], **options))
    structures = [event for event in events if isinstance(event, ShardStructure)]
    results = [event for event in events if not isinstance(event, ShardStructure)]
    flaws = list(chain(*(structure.flaws for structure in structures), *(task_flaws for _, task_flaws in results)))
    return structures, flaws, [task for task, _ in results]


def kinds_and_places(flaws):
    return sorted((flaw.kind, flaw.member, flaw.offset) for flaw in flaws)


@pytest.fixture
def shard(tmp_path):
    """A function that writes members to a shard."""

    def write(*members, name="a.tar"):
        path = tmp_path / name
        path.write_bytes(tar_bytes(members))
        return path

    return write


@pytest.fixture
def packed(tmp_path):
    """A packed shard of four samples, with an index that stores their CRC32s."""
    make_shards(tmp_path / "src", SA1B, samples=4, scale=0.1)
    options = PackOptions(arrays="raw")
    plan = make_plan(list(find_pack_sources(str(tmp_path / "src"), options)), options)
    (tmp_path / "packed" / WORK_FOLDER).mkdir(parents=True)
    for task in plan.tasks():
        pack_shard(task, tmp_path / "packed")
    return tmp_path / "packed" / "shard-000000.tar"


def rewrite(path, data):
    """Replace the bytes of a file without changing its size and modification time."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# -- sound shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_sound_shards_have_no_flaws(tmp_path, preset):
    plain = make_shards(tmp_path / "plain", preset, samples=4, shards=2, order="shuffled", scale=0.1)
    packed = make_shards(tmp_path / "packed", preset, samples=4, shards=2, compression="zst", scale=0.1)
    structures, flaws, tasks = run([*plain, *packed], decode=True)
    assert flaws == []
    assert [structure.shard for structure in structures] == [str(path) for path in [*plain, *packed]]
    assert [structure.samples for structure in structures] == [2, 2, 2, 2]
    assert sum(len(task.samples) for task in tasks) == 8


def test_a_structure_reports_what_the_headers_contain(shard):
    (structure,), _, _ = run([shard(("1.jpg", JPEG), ("1.txt", b"x"), ("2.jpg", JPEG), ("2.txt", b"xy"))])
    assert (structure.samples, structure.parts, structure.size_bytes) == (2, 4, 2 * len(JPEG) + 3)
    assert not structure.with_crc


def test_a_packed_shard_is_read_and_its_crcs_compared(packed):
    (structure,), flaws, tasks = run([packed])
    assert structure.with_crc
    assert flaws == []
    assert all(part.crc32 is not None for task in tasks for sample in task.samples for part in sample.parts)
    assert sum(len(task.samples) for task in tasks) == 4


# -- the structure of a shard --------------------------------------------------------------------------------------


def test_a_tar_cut_short_is_a_flaw_and_the_next_shard_is_checked(shard, tmp_path):
    good = shard(("1.jpg", JPEG))
    cut = shard(("1.txt", b"a" * 1000), ("2.txt", b"b" * 1000), name="cut.tar")
    cut.write_bytes(cut.read_bytes()[: 512 + 1024 + 512 + 300])
    structures, (flaw,), _ = run([cut, good], decode=True)
    assert (flaw.shard, flaw.kind, flaw.member, flaw.offset) == (str(cut), "TarError", "2.txt", 3048)
    assert [(structure.shard, structure.samples) for structure in structures] == [(str(cut), 0), (str(good), 1)]


def test_a_damaged_header_is_reported_with_its_offset(shard):
    path = shard(("1.txt", b"a"), ("2.txt", b"b"))
    path.write_bytes(corrupt.flip_bit(path.read_bytes(), 1024 + 3))
    _, (flaw,), _ = run([path])
    assert (flaw.kind, flaw.offset) == ("TarError", 1024)
    assert "checksum" in flaw.reason


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.tar", b"<!doctype html>" * 100), ("a.tar", b""), ("a.tar", b"\x1f\x8b" * 512), ("b.tar.gz", b"x" * 600)],
)
def test_a_file_that_is_not_a_tar_is_a_flaw(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    _, (flaw,), tasks = run([tmp_path / name], decode=True)
    assert (flaw.shard, flaw.kind) == (str(tmp_path / name), "TarError")
    assert tasks == []


def test_a_missing_shard_is_a_flaw(tmp_path):
    _, (flaw,), _ = run([tmp_path / "missing.tar"])
    assert flaw.kind == "StorageError"


def test_a_shard_without_samples_is_no_flaw_but_noted(shard):
    (structure,), flaws, _ = run([shard()])
    assert (structure.samples, structure.notes, flaws) == (0, ("the shard has no samples",), [])


@pytest.mark.parametrize("compression", ["gz", "zst"])
@pytest.mark.parametrize("decode", [False, True])
def test_a_compressed_shard_cut_short_is_a_flaw(tmp_path, compression, decode):
    (path,) = make_shards(tmp_path, SA1B, samples=4, compression=compression, scale=0.1)
    path.write_bytes(path.read_bytes()[:-2000])
    _, (flaw,), _ = run([path], decode=decode)
    assert (flaw.shard, flaw.kind) == (str(path), "TarError")
    assert flaw.offset >= 0
    assert "damaged or cut short" in flaw.reason


def test_a_flipped_bit_in_gzip_is_a_flaw(tmp_path):
    (path,) = make_shards(tmp_path, SA1B, samples=4, compression="gz", scale=0.1)
    data = path.read_bytes()
    path.write_bytes(corrupt.flip_bit(data, len(data) // 2))
    _, flaws, _ = run([path], decode=True)
    assert flaws
    assert {flaw.shard for flaw in flaws} == {str(path)}


# -- samples and their parts ---------------------------------------------------------------------------------------


def test_incomplete_and_duplicate_samples_are_reported_with_their_offset(shard):
    path = shard(
        ("1.jpg", JPEG),
        ("1.txt", b"a"),
        ("2.jpg", JPEG),
        ("2.txt", b"b"),
        ("3.jpg", JPEG),
        ("3.txt", b"c"),
        ("4.jpg", JPEG),
        ("1.txt", b"again"),
        ("5.jpg", JPEG),
        ("5.txt", b""),
        ("6.seg", b"x"),
        ("6.jpg", JPEG),
    )
    _, flaws, _ = run([path])
    index = scan_shard(path)
    offset = {
        (index.keys[sample], part.suffix): part.offset
        for sample in range(len(index))
        for part in index.sample(sample).parts
    }
    assert kinds_and_places(flaws) == [
        ("duplicate", "1.txt", offset["1", ".txt"]),
        ("empty", "5.txt", offset["5", ".txt"]),
        ("incomplete", "6.seg", offset["6", ".seg"]),
        ("orphan", "4.jpg", offset["4", ".jpg"]),
    ]


def test_missing_required_parts_are_reported_by_name(shard):
    path = shard(("1.jpg", JPEG), ("2.jpg", JPEG))
    assert run([path])[1] == []
    _, flaws, _ = run([path], required=[".jpg", "_features.npz"])
    assert [(flaw.kind, flaw.member) for flaw in flaws] == [("orphan", "1.jpg"), ("orphan", "2.jpg")]
    assert "_features.npz" in flaws[0].reason


@pytest.mark.parametrize(
    ("typeflag", "kind", "offset", "reason"),
    [
        (b"2", "unreadable", 1536, "is a symbolic link to 'x', which is not followed"),
        (b"1", "unreadable", 1536, "is a hard link to 'x', and no file before it has that name"),
        (b"S", "unreadable", 1536, "is a GNU sparse file"),
        (b"6", "stray", 1024, "fifo"),
    ],
)
@pytest.mark.parametrize("decode", [False, True])
def test_members_that_are_not_files_are_reported_once(tmp_path, typeflag, kind, offset, reason, decode):
    path = tmp_path / "a.tar"
    file = hostile.tar_header("1.txt", 1) + b"x".ljust(512, b"\0")
    path.write_bytes(file + hostile.tar_header("other.txt", typeflag=typeflag, link="x") + bytes(1024))
    _, (flaw,), _ = run([path], decode=decode)
    assert (flaw.kind, flaw.member, flaw.offset, flaw.reason) == (kind, "other.txt", offset, reason)


def test_members_that_belong_to_no_sample_are_no_flaws(shard):
    names = [".DS_Store", "._1.jpg", "__MACOSX/._1.jpg", "Thumbs.db", "desktop.ini", "README", "images/"]
    (structure,), flaws, _ = run([shard(("1.jpg", JPEG), *((name, b"x") for name in names))], decode=True)
    assert (structure.samples, flaws) == (1, [])


def test_samples_of_concatenated_tars_are_checked_and_repeated_keys_are_flaws(shard):
    first, second = shard(("1.jpg", JPEG), ("2.jpg", JPEG)), shard(("2.jpg", JPEG), ("3.jpg", JPEG), name="b.tar")
    first.write_bytes(first.read_bytes() + second.read_bytes())
    (structure,), (flaw,), _ = run([first], decode=True)
    assert structure.samples == 3
    assert (flaw.kind, flaw.member) == ("duplicate", "2.jpg")


# -- CRCs and the stored index -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [0, 3])
@pytest.mark.parametrize("decode", [False, True])
def test_a_flipped_byte_in_a_packed_shard_is_reported(packed, sample, decode):
    index = index_shard(packed)
    part = index.sample(sample).parts[1]
    rewrite(packed, corrupt.flip_bit(packed.read_bytes(), part.offset + part.length - 1, bit=5))
    _, (flaw,), _ = run([packed], decode=decode)
    member = index.keys[sample] + part.suffix
    assert (flaw.shard, flaw.kind, flaw.member, flaw.offset) == (str(packed), "crc", member, part.offset)


def test_the_index_of_a_copied_shard_is_compared_and_kept(packed):
    os.utime(packed, ns=(0, 0))
    (structure,), flaws, _ = run([packed])
    assert (structure.with_crc, flaws) == (True, [])
    assert len(structure.notes) == 1
    assert load_index(packed).binding.mtime_ns == 0
    assert load_index(packed).crcs is not None
    (structure,), flaws, _ = run([packed])
    assert (structure.notes, flaws) == ((), [])


def test_damage_to_a_copied_shard_is_a_flaw_and_the_index_stays_outdated(packed):
    part = index_shard(packed).sample(0).parts[0]
    packed.write_bytes(corrupt.flip_bit(packed.read_bytes(), part.offset))
    os.utime(packed, ns=(0, 0))
    (structure,), (flaw,), _ = run([packed])
    assert (flaw.kind, flaw.offset) == ("crc", part.offset)
    assert "shards index --rebuild" in structure.notes[0]
    assert load_index(packed).binding.mtime_ns != 0


def test_the_index_of_a_rewritten_shard_is_rebuilt_and_no_flaw(packed, shard):
    packed.write_bytes(shard(("1.jpg", JPEG)).read_bytes())
    (structure,), flaws, tasks = run([packed])
    assert (structure.with_crc, flaws, tasks) == (False, [], [])
    assert structure.notes == ("the shard has changed since it was indexed: its index was rebuilt",)
    assert load_index(packed).keys == ["1"]


def test_the_index_of_another_version_is_rebuilt_and_no_flaw(packed):
    sidecar = index_path_beside(packed)
    sidecar.write_bytes(corrupt.overwrite(sidecar.read_bytes(), 7, b"1"))
    (structure,), flaws, _ = run([packed])
    assert flaws == []
    assert "index version b'1'" in structure.notes[0]
    assert load_index(packed).crcs is None


def test_a_corrupt_index_is_a_flaw(packed):
    sidecar = index_path_beside(packed)
    sidecar.write_bytes(corrupt.flip_bit(sidecar.read_bytes(), 50))
    _, (flaw,), _ = run([packed])
    assert flaw.kind == "index"
    assert "checksum" in flaw.reason


def falsify(index, column):
    if column in ("keys", "suffixes"):
        return dataclasses.replace(index, **{column: getattr(index, column)[::-1]})
    return dataclasses.replace(index, **{column: getattr(index, column) - 1})


@pytest.mark.parametrize("column", ["keys", "suffixes", "offsets", "lengths"])
def test_an_index_that_disagrees_with_the_headers_is_a_flaw(packed, column):
    save_index(falsify(index_shard(packed), column), packed)
    _, (flaw,), tasks = run([packed])
    assert (flaw.kind, flaw.reason) == ("index", "the stored index disagrees with the shard's headers")
    assert tasks == []


def test_an_index_without_crcs_is_not_a_flaw(tmp_path):
    (path,) = make_shards(tmp_path, SA1B, samples=2, scale=0.1)
    index_shard(path)
    (structure,), flaws, tasks = run([path])
    assert (structure.with_crc, flaws, tasks) == (False, [], [])


# -- decoding ------------------------------------------------------------------------------------------------------

BAD_PARTS = {
    ".jpg": [b"<html>", JPEG[: len(JPEG) // 2], hostile.lossless_jpeg(64, 64), hostile.jpeg_with_scans(3000)],
    ".npz": [hostile.pickle_npz(), hostile.overlapping_npz(), hostile.encrypted_npz(), b"PK"],
    ".npy": [hostile.npy_claiming((10**6,), "<f4", b"short"), NPY[:-1]],
    ".npy.zst": [compress(NPY)[:-3], b"not zstd"],
    ".json": [b"{", b"\xff"],
    ".txt": [b"\xff\xfe"],
    ".png": [b"\x89PNG\r\n"],
}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_part_that_does_not_decode_is_reported(shard, workers):
    bad_parts = [(suffix, data) for suffix, variants in BAD_PARTS.items() for data in variants]
    members = [(f"{number:03d}{suffix}", data) for number, (suffix, data) in enumerate(bad_parts)]
    members[5:5] = [("good.jpg", JPEG), ("good.txt", b"fine"), ("good.json", json.dumps([1]).encode())]
    path = shard(*members)
    index = scan_shard(path)
    expected = sorted(
        (index.member_name(part), int(index.offsets[part]))
        for part in range(index.part_count)
        if not index.member_name(part).startswith("good")
    )
    _, flaws, _ = run([path], decode=True, workers=workers)
    decode_flaws = [flaw for flaw in flaws if flaw.kind in ("GuardError", "DecodeError")]
    assert sorted((flaw.member, flaw.offset) for flaw in decode_flaws) == expected
    assert all(flaw.reason and flaw.shard == str(path) for flaw in decode_flaws)
    assert any("pickle" in flaw.reason for flaw in decode_flaws)


def test_without_decode_a_bad_image_is_not_detected(shard):
    assert run([shard(("1.jpg", b"<html>"))])[1] == []


def test_bad_parts_inside_a_compressed_shard_are_reported(tmp_path):
    path = tmp_path / "a.tar.zst"
    write_tar(path, [("1.jpg", JPEG), ("2.jpg", b"<html>"), ("3.jpg", JPEG)], "zst")
    _, (flaw,), (task,) = run([path], decode=True)
    assert flaw.kind in ("GuardError", "DecodeError")
    assert (flaw.member, flaw.offset) == ("2.jpg", scan_shard(path).sample(1).parts[0].offset)
    assert len(task.samples) == 3


def test_a_large_shard_is_several_tasks_and_a_compressed_one_a_single_task(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "TASK_BYTES", 50_000)
    (plain,) = make_shards(tmp_path, SA1B, samples=6, order="grouped", scale=0.1)
    (compressed,) = make_shards(tmp_path, SA1B, samples=6, compression="gz", scale=0.1)
    _, flaws, tasks = run([plain, compressed], decode=True, workers=2)
    assert flaws == []
    keys = [sample.key for task in tasks if task.shard == str(plain) for sample in task.samples]
    assert sorted(keys) == [SA1B.key(number) for number in range(6)]
    assert len([task for task in tasks if task.shard == str(plain)]) > 1
    assert len([task for task in tasks if task.shard == str(compressed)]) == 1


def test_a_task_runs_without_an_executor(shard):
    path = shard(("1.jpg", JPEG), ("2.jpg", b"no"))
    index = scan_shard(path)
    task = CheckTask(str(path), tuple(index.sample(number) for number in range(2)), True, index.binding)
    (flaw,) = run_check_task(task)
    assert isinstance(flaw, ShardFlaw)
    assert (flaw.member, flaw.offset) == ("2.jpg", index.sample(1).parts[0].offset)


def test_a_replaced_shard_is_reported_as_changed(shard):
    path = shard(("1.jpg", JPEG), ("2.jpg", JPEG))
    index = scan_shard(path)
    task = CheckTask(str(path), (index.sample(0),), True, index.binding)
    os.utime(path, ns=(1, 1))
    (flaw,) = run_check_task(task)
    assert (flaw.kind, flaw.reason) == ("StorageError", "has changed since it was indexed")


# -- a decoder that kills its process ------------------------------------------------------------------------------

CHECKER_THAT_KILLS_ITSELF = """
import os, signal
from penstock.shards.check import run_check_task as real_run_check_task

def run_check_task(task):
    if any(sample.key in ("003", "006") for sample in task.samples):
        os.kill(os.getpid(), signal.SIGKILL)
    return real_run_check_task(task)
"""


def test_samples_that_kill_their_decoder_are_reported_and_the_others_checked(shard, tmp_path, monkeypatch):
    (tmp_path / "killing_checker.py").write_text(CHECKER_THAT_KILLS_ITSELF)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(check, "run_check_task", importlib.import_module("killing_checker").run_check_task)
    bad = ("002", "007")
    path = shard(*((f"{number:03d}.jpg", b"bad" if f"{number:03d}" in bad else JPEG) for number in range(8)))
    _, flaws, tasks = run([path], decode=True, workers=2)
    offsets = {sample.key: sample.parts[0].offset for task in tasks for sample in task.samples}
    assert sorted(sample.key for task in tasks for sample in task.samples) == [f"{number:03d}" for number in range(8)]
    crashes = [flaw for flaw in flaws if flaw.kind == "crash"]
    assert kinds_and_places(crashes) == [("crash", key, offsets[key]) for key in ("003", "006")]
    others = [(flaw.member, flaw.offset) for flaw in flaws if flaw.kind != "crash"]
    assert sorted(others) == [(f"{key}.jpg", offsets[key]) for key in bad]
    assert all("SIGKILL" in flaw.reason for flaw in crashes)


# -- no more data than necessary -----------------------------------------------------------------------------------


def test_without_decode_and_crcs_no_data_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    size = 64 << 20
    with open(path, "wb") as file:  # a sparse file: 256 MiB that take no space
        for number in range(4):
            file.write(hostile.tar_header(f"{number}.bin", size))
            file.seek(size, os.SEEK_CUR)
        file.write(bytes(1024))
    lengths = []
    real_pread = local.pread

    def pread(fd, length, offset):
        lengths.append(length)
        return real_pread(fd, length, offset)

    monkeypatch.setattr(local, "pread", pread)
    monkeypatch.setattr("penstock.shards.task_pool._PoolWorker", None)  # starting a process would fail
    (structure,), flaws, tasks = run([path])
    assert (structure.samples, structure.size_bytes, flaws, tasks) == (4, 4 * size, [], [])
    assert sum(lengths) < 1 << 20


def test_shards_are_taken_from_the_iterable_as_needed(packed):
    taken = []

    def paths():
        for number in range(200):
            taken.append(number)
            yield str(packed)

    events = check_shards(paths(), decode=False, workers=1)
    assert isinstance(next(events), ShardStructure)
    assert len(taken) < 100
    events.close()


def test_structures_come_before_their_tasks(packed, tmp_path):
    (other,) = make_shards(tmp_path, SA1B, samples=2, scale=0.1)
    with_structure = set()
    for event in check_shards([str(packed), str(other)], decode=True, workers=2):
        if isinstance(event, ShardStructure):
            with_structure.add(event.shard)
        else:
            assert event[0].shard in with_structure
    assert with_structure == {str(packed), str(other)}
