"""Whole packs: their output, runs that were killed, folders in use by others, full disks, bad sources."""

import importlib
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest
from tests.support.waiting import wait_until

from penstock.errors import GuardError, PenstockError, SettingError, ShardError, StorageError, WorkerCrash
from penstock.shards.check import check_shards
from penstock.shards.index import index_path_beside
from penstock.shards.pack import run
from penstock.shards.pack.manifest import Manifest
from penstock.shards.pack.run import pack, started_array_codec
from penstock.shards.pack.write import WORK_FOLDER, finished_report, report_path
from penstock.shards.scan import scan_shard
from penstock.testing import SA1B, corrupt, make_shards, tar_bytes

MIB = 1 << 20
DEADLINE_S = 60


def manifest_of(folder):
    return msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)


def shards_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def identity(path):
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def keys_of(folder):
    return [key for path in sorted(folder.glob("*.tar")) for key in scan_shard(path).keys]


@pytest.fixture
def six_shards(tmp_path, noise_shard):
    """A source that packs to six shards of 1 MiB."""
    return noise_shard(tmp_path / "src" / "noise.tar", 65)


# -- the output --------------------------------------------------------------------------------------------------


def test_the_output_does_not_depend_on_the_number_of_workers(tmp_path, pack_with_workers):
    make_shards(tmp_path / "src", SA1B, samples=60, shards=3, order="shuffled", scale=0.1)
    packs = [
        pack_with_workers(
            tmp_path / "src", tmp_path / f"packed{workers}", workers=workers, arrays="zstd", shard_bytes=MIB
        )
        for workers in (1, 2, 3)
    ]
    first, *others = (shards_of(packed.folder) for packed in packs)
    assert len(first) > 1
    assert all(other == first for other in others)
    manifests = {(packed.folder / "manifest.json").read_bytes() for packed in packs}
    assert len(manifests) == 1


def test_packs_of_other_content_have_other_fingerprints(tmp_path, pack_with_workers, noise_shard):
    first = pack_with_workers(noise_shard(tmp_path / "a.tar", 3, 1000), tmp_path / "first")
    second = pack_with_workers(noise_shard(tmp_path / "b.tar", 3, 1001), tmp_path / "second")
    assert manifest_of(first.folder).fingerprint != manifest_of(second.folder).fingerprint


def test_the_manifest_sums_up_the_shards(tmp_path, pack_with_workers):
    make_shards(tmp_path / "src", SA1B, samples=40, scale=0.1)
    packed = pack_with_workers(
        tmp_path / "src", tmp_path / "packed", arrays="raw", casts=(("edge", "float16"),), shard_bytes=MIB
    )
    manifest = manifest_of(packed.folder)
    assert len(packed.reports) == len(packed.plan.shards) > 1
    assert (manifest.version, manifest.samples, manifest.skipped) == (1, 40, 0)
    assert manifest.shards == [
        {
            "name": name,
            "samples": len(scan_shard(packed.folder / name)),
            "size_bytes": (packed.folder / name).stat().st_size,
        }
        for name in sorted(shards_of(packed.folder))
    ]
    assert manifest.size_bytes == sum(shard["size_bytes"] for shard in manifest.shards)
    assert {suffix: (fact.codec, fact.parts, fact.dtype, fact.shape) for suffix, fact in manifest.fields.items()} == {
        ".jpg": ("jpeg", 40, "|u1", (150, 225, 3)),
        ".features.features.npy": ("npy", 40, "<f2", (256, 6, 6)),
        ".features.edge.npy": ("npy", 40, "<f2", (26, 26)),
    }
    assert manifest.options["arrays"] == "raw"
    assert manifest.options["casts"] == [["edge", "float16"]]
    assert len(manifest.fingerprint) == 32


def test_check_finds_no_flaws_in_a_packed_folder(six_shards, tmp_path, pack_with_workers):
    packed = pack_with_workers(six_shards, tmp_path / "packed", shard_bytes=MIB)
    structures = [
        event
        for event in check_shards(sorted(map(str, packed.folder.glob("*.tar"))), decode=True, workers=1)
        if not isinstance(event, tuple)
    ]
    assert [(structure.with_crc, structure.flaws) for structure in structures] == [(True, ())] * 6
    assert sum(structure.samples for structure in structures) == 65


def test_the_array_codec_of_a_pack_is_stored_in_its_folder(six_shards, tmp_path, pack_with_workers):
    assert started_array_codec(tmp_path / "packed") is None
    pack_with_workers(six_shards, tmp_path / "packed", arrays="zstd")
    assert started_array_codec(tmp_path / "packed") == "zstd"


# -- continuing a pack that was killed ---------------------------------------------------------------------------

CHILD = """
import pickle, sys
from pathlib import Path
from penstock.shards.pack.run import pack

if __name__ == "__main__":
    for report in pack(pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]), workers=2):
        pass
"""


@pytest.fixture
def loose(tmp_path):
    """Loose files that pack to six shards."""
    src = tmp_path / "loose"
    src.mkdir()
    for number in range(66):
        (src / f"{number:05d}.bin").write_bytes(os.urandom(100_000))
    return src


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a FIFO to block a worker in a certain shard")
def test_a_killed_pack_continues_without_loss_and_keeps_its_finished_shards(
    tmp_path, loose, plan_of, pack_with_workers, temporaries
):
    plan, folder = plan_of(loose, shard_bytes=MIB), tmp_path / "packed"
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "plan.pickle").write_bytes(pickle.dumps(plan))
    tasks = list(plan.tasks())
    blocked = tasks[3]
    # one file is replaced by a FIFO: the worker that reads it blocks in the middle of its shard
    source_file, original = loose / (blocked.selections[0].samples[5].key + ".bin"), tmp_path / "original"
    source_file.rename(original)
    os.mkfifo(source_file)
    workers = []
    child = subprocess.Popen([sys.executable, tmp_path / "child.py", tmp_path / "plan.pickle", folder])
    try:
        wait_until(lambda: finished_report(tasks[0], folder) is not None, "the first shard")
        wait_until(lambda: list(folder.glob(f".{blocked.name}.*.tmp")), "the shard that cannot be finished")
        workers = psutil.Process(child.pid).children(recursive=True)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(DEADLINE_S) == -signal.SIGKILL
        wait_until(lambda: not any(map(is_alive, workers)), "the workers to end with their parent")
    finally:
        for process in workers:
            if is_alive(process):
                process.kill()
        child.kill()
        child.wait()
    assert any(name.startswith(f".{blocked.name}") for name in temporaries(folder))
    assert not (folder / "manifest.json").exists()
    source_file.unlink()
    original.rename(source_file)

    kept = {task.name: identity(folder / task.name) for task in tasks if finished_report(task, folder) is not None}
    assert tasks[0].name in kept
    assert blocked.name not in kept
    reports = list(pack(plan, folder, workers=2))
    assert sorted(report.name for report in reports) == [task.name for task in tasks]
    assert {name: identity(folder / name) for name in kept} == kept
    assert keys_of(folder) == [f"{number:05d}" for number in range(66)]
    assert temporaries(folder) == []
    uninterrupted = pack_with_workers(loose, tmp_path / "uninterrupted", workers=2, shard_bytes=MIB).folder
    assert shards_of(folder) == shards_of(uninterrupted)
    assert (folder / "manifest.json").read_bytes() == (uninterrupted / "manifest.json").read_bytes()


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("missing", ["report", "index", "shard", "size"])
def test_only_a_shard_with_a_missing_or_changed_file_is_written_again(six_shards, tmp_path, pack_with_workers, missing):
    packed = pack_with_workers(six_shards, tmp_path / "packed", workers=2, shard_bytes=MIB)
    before, manifest = shards_of(packed.folder), manifest_of(packed.folder)
    name = "shard-000002.tar"
    shard = packed.folder / name
    untouched = {other: identity(packed.folder / other) for other in before if other != name}
    if missing == "size":
        shard.write_bytes(shard.read_bytes() + b"\0")
    else:
        files = {"report": report_path(packed.folder, name), "index": index_path_beside(shard), "shard": shard}
        files[missing].unlink()
    repacked = pack_with_workers(six_shards, packed.folder, workers=2, shard_bytes=MIB)
    assert len(repacked.reports) == len(before)
    assert shards_of(packed.folder) == before
    assert {other: identity(packed.folder / other) for other in untouched} == untouched
    assert manifest_of(packed.folder) == manifest


def test_packing_a_finished_pack_again_starts_no_process(six_shards, tmp_path, pack_with_workers, monkeypatch):
    packed = pack_with_workers(six_shards, tmp_path / "packed", workers=2, shard_bytes=MIB)
    monkeypatch.setattr("penstock.shards.task_pool._PoolWorker", None)
    repacked = pack_with_workers(six_shards, packed.folder, shard_bytes=MIB)
    assert sorted(repacked.reports, key=lambda report: report.name) == sorted(
        packed.reports, key=lambda report: report.name
    )


def test_temporary_files_of_a_killed_run_are_removed(six_shards, tmp_path, pack_with_workers, temporaries):
    folder = tmp_path / "packed"
    (folder / WORK_FOLDER).mkdir(parents=True)
    leftovers = [
        ".shard-000000.tar.12345.tmp",
        ".shard-000000.tar.pidx.ab3_x9q2",
        ".manifest.json.12345.tmp",
        f"{WORK_FOLDER}/.shard-000000.tar.json.12345.tmp",
        f"{WORK_FOLDER}/.plan.json.12345.tmp",
    ]
    for name in leftovers:
        (folder / name).write_bytes(b"half")
    pack_with_workers(six_shards, folder)
    assert temporaries(folder) == []
    assert sorted(path.name for path in folder.iterdir()) == [
        WORK_FOLDER,
        "manifest.json",
        "shard-000000.tar",
        "shard-000000.tar.pidx",
    ]


# -- folders that are in use already -----------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"quality": 50}, {"shard_bytes": 2 * MIB}, {"arrays": "raw"}])
def test_a_folder_with_a_pack_of_other_options_is_refused_and_left_unchanged(
    six_shards, tmp_path, pack_with_workers, other
):
    packed = pack_with_workers(six_shards, tmp_path / "packed", shard_bytes=MIB)
    before = {path: identity(path) for path in packed.folder.rglob("*") if path.name != "lock"}
    with pytest.raises(SettingError, match="other options") as caught:
        pack_with_workers(six_shards, packed.folder, **{"shard_bytes": MIB, **other})
    assert "--overwrite" in caught.value.advice
    assert {path: identity(path) for path in packed.folder.rglob("*") if path.name != "lock"} == before


def test_overwrite_replaces_the_old_pack_and_leaves_none_of_its_files(six_shards, tmp_path, pack_with_workers):
    folder = pack_with_workers(six_shards, tmp_path / "packed", workers=2, shard_bytes=MIB).folder
    assert len(shards_of(folder)) == 6
    pack_with_workers(six_shards, folder, shard_bytes=4 * MIB, quality=50, overwrite=True)
    fresh = pack_with_workers(six_shards, tmp_path / "fresh", shard_bytes=4 * MIB, quality=50).folder
    assert shards_of(folder) == shards_of(fresh)
    assert {path.relative_to(folder) for path in folder.rglob("*")} == {
        path.relative_to(fresh) for path in fresh.rglob("*")
    }
    assert manifest_of(folder) == manifest_of(fresh)


def test_overwrite_keeps_files_that_are_not_from_the_old_pack(six_shards, tmp_path, pack_with_workers, noise_shard):
    folder = pack_with_workers(six_shards, tmp_path / "packed", shard_bytes=MIB).folder
    users_shard = noise_shard(folder / "users.tar", 1)
    users_notes = folder / "notes.txt"
    users_notes.write_text("text of the user")
    pack_with_workers(six_shards, folder, quality=50, overwrite=True)
    assert users_shard.exists()
    assert users_notes.read_text() == "text of the user"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_shards_that_are_not_from_a_pack_is_refused_and_left_unchanged(
    six_shards, tmp_path, pack_with_workers, noise_shard, overwrite
):
    foreign = noise_shard(tmp_path / "packed" / "foreign.tar", 1)
    before = identity(foreign)
    with pytest.raises(SettingError, match="not from a pack"):
        pack_with_workers(six_shards, tmp_path / "packed", overwrite=overwrite)
    assert identity(foreign) == before
    assert list(shards_of(tmp_path / "packed")) == ["foreign.tar"]


def test_an_unreadable_plan_file_of_an_earlier_pack_is_an_error(six_shards, tmp_path, pack_with_workers):
    folder = pack_with_workers(six_shards, tmp_path / "packed").folder
    (folder / WORK_FOLDER / "plan.json").write_bytes(b"{")
    with pytest.raises(PenstockError, match="earlier pack"):
        pack_with_workers(six_shards, folder, overwrite=True)


def test_names_in_the_plan_file_cannot_remove_files_outside_the_folder(six_shards, tmp_path, pack_with_workers):
    outside = tmp_path / "outside.tar"
    outside.write_bytes(b"x")
    folder = tmp_path / "packed"
    (folder / WORK_FOLDER).mkdir(parents=True)
    plan_file = {"fingerprint": "0", "arrays": "keep", "shards": ["../outside.tar", str(outside)]}
    (folder / WORK_FOLDER / "plan.json").write_bytes(msgspec.json.encode(plan_file))
    pack_with_workers(six_shards, folder, overwrite=True)
    assert outside.exists()


def test_a_second_pack_into_the_folder_at_the_same_time_is_refused(six_shards, tmp_path, plan_of, temporaries):
    plan = plan_of(six_shards, shard_bytes=MIB)
    first = pack(plan, tmp_path / "packed", workers=1)
    reports = [next(first)]
    with pytest.raises(StorageError, match="another pack"):
        next(pack(plan, tmp_path / "packed", workers=1))
    reports += first
    assert len(reports) == len(plan.shards)
    assert temporaries(tmp_path / "packed") == []


def test_a_pack_that_was_closed_early_can_be_continued(six_shards, tmp_path, plan_of, temporaries):
    plan = plan_of(six_shards, shard_bytes=MIB)
    first_run = pack(plan, tmp_path / "packed", workers=2)
    finished = next(first_run)
    first_run.close()
    assert temporaries(tmp_path / "packed") == []
    reports = list(pack(plan, tmp_path / "packed", workers=2))
    assert finished in reports
    assert len(reports) == len(plan.shards)


# -- storage that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_finished_shards_survive_a_full_disk_and_the_next_run_continues(
    six_shards, plan_of, mount_tmpfs, temporaries, workers
):
    plan = plan_of(six_shards, shard_bytes=MIB)
    with mount_tmpfs("size=4m") as disk:
        folder = disk / "packed"
        reports = []
        with pytest.raises(StorageError, match="No space left") as caught:
            reports += pack(plan, folder, workers=workers)
        assert "Free some space" in caught.value.advice
        assert Path(caught.value.shard).parent == folder
        assert temporaries(folder) == []
        kept = {task.name: identity(folder / task.name) for task in plan.tasks() if finished_report(task, folder)}
        assert 1 <= len(kept) <= 3
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        reports = list(pack(plan, folder, workers=workers))
        assert len(reports) == len(plan.shards) == 6
        assert {name: identity(folder / name) for name in kept} == kept
        assert keys_of(folder) == [f"{number:05d}" for number in range(65)]


def fill(disk):
    """Write a file that takes every free page of the disk; return its path."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass
    return filler


def test_a_disk_that_is_full_from_the_start_is_a_storage_error(six_shards, plan_of, mount_tmpfs, temporaries):
    with mount_tmpfs("size=1m") as disk:
        fill(disk)
        with pytest.raises(StorageError, match="No space left"):
            list(pack(plan_of(six_shards), disk / "packed", workers=1))
        assert temporaries(disk / "packed") == []


def test_a_disk_that_fills_before_the_manifest_is_a_storage_error(
    tmp_path, noise_shard, plan_of, mount_tmpfs, temporaries
):
    plan = plan_of(noise_shard(tmp_path / "src" / "a.tar", 3))
    with mount_tmpfs("size=4m") as disk:
        folder = disk / "packed"
        running = pack(plan, folder, workers=1)
        report = next(running)
        filler = fill(disk)
        with pytest.raises(StorageError, match="No space left"):
            next(running)
        assert temporaries(folder) == []
        filler.unlink()
        assert list(pack(plan, folder, workers=1)) == [report]
        assert manifest_of(folder).samples == 3


def test_a_read_only_target_is_a_storage_error(six_shards, plan_of, mount_tmpfs):
    with mount_tmpfs("ro") as disk, pytest.raises(StorageError, match="Read-only") as caught:
        list(pack(plan_of(six_shards), disk / "packed", workers=1))
    assert caught.value.shard == str(disk / "packed")
    assert caught.value.advice


def test_a_target_that_is_a_file_is_a_storage_error(six_shards, tmp_path, plan_of):
    (tmp_path / "packed").write_bytes(b"")
    with pytest.raises(StorageError):
        list(pack(plan_of(six_shards), tmp_path / "packed"))


# -- bad sources -------------------------------------------------------------------------------------------------


def test_a_source_that_changes_during_a_run_ends_it_with_an_error(six_shards, tmp_path, plan_of, temporaries):
    plan = plan_of(six_shards, shard_bytes=MIB)
    six_shards.write_bytes(corrupt.overwrite(six_shards.read_bytes(), 1000, b"new"))
    os.utime(six_shards, ns=(0, 0))
    with pytest.raises(ShardError, match="changed") as caught:
        list(pack(plan, tmp_path / "packed", workers=1))
    assert caught.value.shard == str(six_shards)
    assert shards_of(tmp_path / "packed") == {}
    assert temporaries(tmp_path / "packed") == []


def make_source_with_bad_samples(tmp_path):
    """Write a shard of 24 samples, enough for three shards: three have a broken NPZ, one has none."""
    noise = os.urandom(100_000)
    members = []
    for number in range(24):
        key = f"{number:03d}"
        members.append((f"{key}.bin", noise))
        if number != 7:
            members.append((f"{key}.npz", b"broken" if number in (0, 11, 23) else b"PK\5\6" + bytes(18)))
    path = tmp_path / "src" / "a.tar"
    path.parent.mkdir()
    path.write_bytes(tar_bytes(members))
    return path


def test_skipped_samples_are_counted_and_listed(tmp_path, pack_with_workers):
    src = make_source_with_bad_samples(tmp_path)
    packed = pack_with_workers(src, tmp_path / "packed", shard_bytes=MIB, on_bad="skip", workers=2)
    skipped = [line for report in packed.reports for line in report.skipped]
    assert sorted(line["member"] for line in skipped) == ["000.npz", "011.npz", "023.npz"]
    assert {line["shard"] for line in skipped} == {str(src)}
    manifest = manifest_of(packed.folder)
    assert (manifest.samples, manifest.skipped) == (20, 4)
    problems = [problem.member for source in packed.plan.sources for problem in source.problems]
    assert problems == ["007.bin"]
    indexed = sum(len(source.index) for source in packed.plan.sources)
    assert manifest.samples + manifest.skipped == indexed == 24
    assert len(keys_of(packed.folder)) == 20


def test_a_bad_sample_ends_the_run_with_an_error_that_names_it(tmp_path, plan_of, temporaries):
    src = tmp_path / "a.tar"
    src.write_bytes(
        tar_bytes([(f"{number}.npz", b"PK\5\6" + bytes(18)) for number in range(5)] + [("5.npz", b"broken")])
    )
    with pytest.raises(GuardError) as caught:
        list(pack(plan_of(src), tmp_path / "packed", workers=1))
    assert (caught.value.shard, caught.value.member, caught.value.offset) == (str(src), "5.npz", 11 * 512)
    assert temporaries(tmp_path / "packed") == []
    assert not (tmp_path / "packed" / "manifest.json").exists()


PACKER_THAT_KILLS_ITSELF = """
import os, signal
from penstock.shards.pack.write import pack_shard as real_pack_shard

def pack_shard(task, folder):
    if task.name == "shard-000002.tar":
        (folder / f".{task.name}.{os.getpid()}.tmp").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return real_pack_shard(task, folder)
"""


def test_a_worker_that_dies_ends_the_run_with_an_error_that_names_its_shard(
    six_shards, tmp_path, pack_with_workers, plan_of, monkeypatch, temporaries
):
    (tmp_path / "killing_packer.py").write_text(PACKER_THAT_KILLS_ITSELF)
    monkeypatch.syspath_prepend(tmp_path)
    plan, folder = plan_of(six_shards, shard_bytes=MIB), tmp_path / "packed"
    with monkeypatch.context() as patch:
        patch.setattr(run, "pack_shard", importlib.import_module("killing_packer").pack_shard)
        with pytest.raises(WorkerCrash, match="SIGKILL") as caught:
            list(pack(plan, folder, workers=1))
    assert caught.value.shard == str(folder / "shard-000002.tar")
    assert temporaries(folder) == []
    assert list(shards_of(folder)) == ["shard-000000.tar", "shard-000001.tar"]
    assert len(list(pack(plan, folder, workers=1))) == 6
