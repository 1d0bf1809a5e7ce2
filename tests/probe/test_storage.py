import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import SettingError, StorageError
from penstock.probe import storage_files
from penstock.probe.storage import (
    SEQUENTIAL_BYTES,
    curve_key,
    load_curve,
    measure_files,
    probe_storage,
    size_class,
    store_curve,
)
from penstock.storage.mounts import identify_storage
from penstock.storage.page_cache import ColdFile
from penstock.testing.clock import FakeClock

SAMPLE = 64 << 10


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Write a smaller temporary file than the probe does for users."""
    monkeypatch.setattr(storage_files, "SCRATCH_BYTES", 32 << 20)


@pytest.fixture
def slow_reads(monkeypatch):
    """A storage that serves one read at a time, each of a given duration by the test's clock."""
    clock = FakeClock()
    reads = []

    def install(seconds_per_read):
        lock = threading.Lock()

        def read_into(self, buffer, offset, length):
            with lock:
                reads.append((length, offset))
                clock.advance(seconds_per_read)
            return length

        monkeypatch.setattr(ColdFile, "read_into", read_into)
        return clock, reads

    return install


def test_a_real_storage_is_measured_and_no_file_remains(tmp_path):
    curve = probe_storage(tmp_path, sample_bytes=SAMPLE, budget_s=0.5)
    assert curve.points[0].in_flight == 1
    assert curve.sample_bytes == SAMPLE
    assert curve.cold is not identify_storage(tmp_path).kind.in_memory
    assert curve.open_stat.opens > 0
    assert list(tmp_path.iterdir()) == []


def test_existing_files_are_read_and_no_file_is_written(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "0.tar").write_bytes(os.urandom(9 << 20))
    monkeypatch.setattr(storage_files, "ENOUGH_BYTES", 8 << 20)
    monkeypatch.setattr(storage_files, "_scratch_file", None)
    curve = probe_storage(tmp_path, sample_bytes=SAMPLE, budget_s=20)  # not used up: the files are read once only
    assert curve.probe_bytes == 9 << 20
    assert curve.points[-1].in_flight == 2  # 9 MiB hold two blocks of 4 MiB: more readers would read bytes twice


def test_a_single_shard_can_be_probed(tmp_path, monkeypatch):
    shard = tmp_path / "0.tar"
    shard.write_bytes(os.urandom(9 << 20))
    monkeypatch.setattr(storage_files, "ENOUGH_BYTES", 8 << 20)
    assert probe_storage(shard, sample_bytes=SAMPLE, budget_s=0.3).probe_bytes == 9 << 20


def test_sparse_files_are_not_read(tmp_path):
    with open(tmp_path / "sparse.tar", "wb") as stream:
        stream.truncate(1 << 30)
    found = storage_files.survey_path(tmp_path, 1.0, FakeClock())
    assert (found.large, found.names) == ([], [tmp_path / "sparse.tar"])


def test_a_read_only_folder_is_measured_on_the_few_bytes_it_has(mount_tmpfs):
    folder = mount_tmpfs("ro", "size=32m")
    (folder / "0.tar").write_bytes(os.urandom(9 << 20))
    remount(folder, "ro")
    assert probe_storage(folder, sample_bytes=SAMPLE, budget_s=0.3).probe_bytes == 9 << 20


def test_an_empty_read_only_folder_is_an_error_with_advice(mount_tmpfs):
    folder = mount_tmpfs("ro", "size=1m,ro")
    with pytest.raises(StorageError, match=r"nothing to measure with.*Point at a folder with shards"):
        probe_storage(folder, budget_s=0.3)


def test_a_nearly_full_filesystem_is_not_filled(mount_tmpfs):
    folder = mount_tmpfs("full", "size=40m")
    with pytest.raises(StorageError, match="64 MiB are free"):
        probe_storage(folder, budget_s=0.3)


def remount(folder, option):
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


@pytest.mark.parametrize("unnamed", [True, False])
def test_an_interrupted_probe_leaves_no_file(tmp_path, monkeypatch, unnamed):
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    seen = []

    def interrupt(self, buffer, offset, length):
        seen.extend(path.name for path in tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.probe.storage_files.choose_method", lambda path, storage: "warm")
    monkeypatch.setattr(ColdFile, "read_into", interrupt)
    with pytest.raises(KeyboardInterrupt):
        probe_storage(tmp_path, budget_s=0.3)
    assert list(tmp_path.iterdir()) == []
    assert bool(seen) is not (unnamed and hasattr(os, "O_TMPFILE"))


def test_a_read_error_is_a_storage_error(tmp_path, monkeypatch):
    def fail(self, buffer, offset, length):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("penstock.probe.storage_files.choose_method", lambda path, storage: "warm")
    monkeypatch.setattr(ColdFile, "read_into", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        probe_storage(tmp_path, budget_s=0.3)


def test_a_slow_storage_gets_fewer_reads_and_hardly_exceeds_the_budget(tmp_path, slow_reads):
    clock, reads = slow_reads(0.5)
    curve = measure_files(identify_storage(tmp_path), SAMPLE, 6.0, clock)
    assert 0 < curve.seconds <= 6.0 + 2 * 0.5
    assert curve.points[0].random_reads_per_s == pytest.approx(2)
    assert curve.points[-1].in_flight < 32
    assert len(reads) < 16


def test_the_slowest_storage_still_gives_one_point(tmp_path, slow_reads):
    clock, _ = slow_reads(60.0)
    curve = measure_files(identify_storage(tmp_path), SAMPLE, 6.0, clock)
    assert [point.in_flight for point in curve.points] == [1]


def test_a_fast_storage_is_measured_at_every_depth_without_reading_a_byte_twice(tmp_path, slow_reads, monkeypatch):
    clock, reads = slow_reads(1e-4)
    (tmp_path / "0.tar").write_bytes(os.urandom(SEQUENTIAL_BYTES))  # too few bytes: a temporary file is used
    monkeypatch.setattr(storage_files, "SCRATCH_BYTES", 128 << 20)
    curve = measure_files(identify_storage(tmp_path), SEQUENTIAL_BYTES, 6.0, clock)
    assert [point.in_flight for point in curve.points] == [1, 2, 4, 8, 16, 32]
    cells = [reads[start : start + 32] for start in range(1, len(reads), 32)]  # the first read tried O_DIRECT
    assert all(len(set(cell)) == len(cell) for cell in cells)
    assert curve.points[0].sequential_mb_per_s == pytest.approx(SEQUENTIAL_BYTES / 1e-4 / 1e6, rel=0.01)


def test_a_curve_is_cached_until_a_refresh(tmp_path):
    first = probe_storage(tmp_path, sample_bytes=SAMPLE, budget_s=0.2)
    assert probe_storage(tmp_path, sample_bytes=SAMPLE - 1) == first
    assert probe_storage(tmp_path, sample_bytes=SAMPLE, budget_s=0.2, refresh=True) != first


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"not json",
        lambda data: data[: len(data) // 2],
        lambda data: b"[" * 100_000,
        lambda data: data + b" " * (1 << 17),
        lambda data: data.replace(b'"in_flight":1,', b'"in_flight":-1,'),
        lambda data: data.replace(b'"cold":', b'"cold":3,"x":'),
        lambda data: data.replace(b'"version":1', b'"version":0'),
        lambda data: data.replace(b'"measured_unix_s":', b'"measured_unix_s":1,"x":'),
        lambda data: data.replace(b'"measured_unix_s":', b'"measured_unix_s":9e18,"x":'),
    ],
)
def test_a_cached_file_that_is_corrupt_hostile_or_old_is_ignored(tmp_path, spoil):
    key = curve_key(identify_storage(tmp_path), SAMPLE)
    store_curve(key, make_curve())
    assert load_curve(key) == make_curve()
    (file,) = (Path(os.environ["PENSTOCK_CACHE"]) / "storage").iterdir()
    spoiled = spoil(file.read_bytes())
    assert spoiled != file.read_bytes()
    file.write_bytes(spoiled)
    assert load_curve(key) is None


def make_curve():

    from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve

    now = time.time() // 3600 * 3600
    return StorageCurve((CurvePoint(1, 1.0, 1.0),), SAMPLE, OpenStat(1.0, 2.0, 3), True, "direct", 1, 1.0, now)


def test_a_cache_that_cannot_be_written_does_not_fail_the_probe(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    assert probe_storage(tmp_path, sample_bytes=SAMPLE, budget_s=0.2).points


def test_two_servers_with_the_same_device_number_do_not_share_a_curve(tmp_path):
    here = identify_storage(tmp_path)
    one, two = (replace(here, device="0:50", source=source) for source in ("a:/x", "b:/x"))
    again = replace(one, device="0:51")
    assert curve_key(one, 1) != curve_key(two, 1)
    assert curve_key(one, 1) == curve_key(again, 1)


@pytest.mark.parametrize(("size", "measured"), [(1, 4096), (4096, 4096), (500_000, 1 << 19), ((1 << 19) + 1, 1 << 20)])
def test_the_next_power_of_two_of_a_size_is_measured(size, measured):
    assert size_class(size) == measured


@pytest.mark.parametrize("size", [0, -1, (32 << 20) + 1])
def test_sizes_that_cannot_be_measured_are_refused(size, tmp_path):
    with pytest.raises(SettingError):
        probe_storage(tmp_path, sample_bytes=size)
