import os
from pathlib import Path

import pytest

from penstock.recording.format import EventLine, FetchLine, LoaderLine, RunLine
from penstock.recording.reader import load
from penstock.recording.writer import Recorder
from penstock.testing import FakeClock
from penstock.watcher.machine import storage_recheck as recheck_module
from penstock.watcher.machine.storage_recheck import MAX_READERS, add_storage_recheck, recheck_storage

KIB = 1 << 10


@pytest.fixture
def files(tmp_path):
    """Return the paths of four files of 256 KiB."""
    paths = [tmp_path / f"{number}.tar" for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(256 * KIB))
    return [str(path) for path in paths]


class ReadLog:
    """The reads of each measurement, on a clock that each read advances by `tick_s`."""

    def __init__(self, monkeypatch, tick_s):
        self.clock = FakeClock()
        self.slices = [[]]
        real = recheck_module.ColdFile.read_into
        rate = recheck_module._ReadBenchmark._rate

        def read_into(file, buffer, offset, length):
            self.clock.advance(tick_s)
            self.slices[-1].append((file.path.name, offset, length))
            return real(file, buffer, offset, length)

        def logged_rate(benchmark, reads, *, random_access):
            self.slices.append([])
            start = self.clock.now()
            found = rate(benchmark, reads, random_access=random_access)
            self.slices[-1].pop(0)  # the read before each measurement, which is not counted
            self.slice_seconds.append(self.clock.now() - start)
            return found

        self.slice_seconds = []
        monkeypatch.setattr(recheck_module.ColdFile, "read_into", read_into)
        monkeypatch.setattr(recheck_module._ReadBenchmark, "_rate", logged_rate)


def test_all_four_rates_of_real_files_are_measured(files):
    line = recheck_storage(3, files, 64 * KIB, readers=4, budget_s=0.4)
    assert (line.loader, line.readers, line.read_bytes) == (3, 4, 64 * KIB)
    assert line.folder == str(Path(files[0]).parent)
    rates = (line.sequential_alone, line.sequential_together, line.random_alone, line.random_together)
    assert all(1e3 < rate < 1e12 for rate in rates), rates


def test_readahead_that_is_still_queued_does_not_slow_the_next_measurement(files, monkeypatch):
    clock = FakeClock()
    queued_s = [0.0]
    real_read, real_drop = recheck_module.ColdFile.read_into, recheck_module.ColdFile.drop

    def read_into(file, buffer, offset, length):
        clock.advance(0.001 + queued_s.pop() if queued_s else 0.001)
        return real_read(file, buffer, offset, length)

    def drop(file, *, random):
        real_drop(file, random=random)
        queued_s[:] = [10.0]  # seconds that a slow device needs for earlier readahead

    monkeypatch.setattr(recheck_module.ColdFile, "read_into", read_into)
    monkeypatch.setattr(recheck_module.ColdFile, "drop", drop)
    line = recheck_storage(0, files, 64 * KIB, readers=2, clock=clock)
    assert line.random_alone == pytest.approx(64 * KIB / 0.001, rel=0.1)
    assert line.sequential_alone == pytest.approx(64 * KIB / 0.001, rel=0.1)


def test_every_pattern_reads_every_offset_once_within_the_budget(files, monkeypatch):
    reads = ReadLog(monkeypatch, tick_s=1e-6)
    recheck_storage(0, files, 64 * KIB, readers=2, clock=reads.clock)
    everything = sorted((Path(path).name, at, 64 * KIB) for path in files for at in range(0, 256 * KIB, 64 * KIB))
    assert [sorted(each) for each in reads.slices[1:]] == [everything] * 8  # alone, together, together, alone
    sequential, random = reads.slices[1], reads.slices[5]
    assert sequential == everything
    assert random != everything


def test_more_readers_than_files_divide_the_files_between_them(files, monkeypatch):
    reads = ReadLog(monkeypatch, tick_s=1e-6)
    recheck_storage(0, files[:2], 32 * KIB, readers=6, clock=reads.clock)
    together = reads.slices[3]
    assert sorted(together) == sorted(
        (Path(p).name, at, 32 * KIB) for p in files[:2] for at in range(0, 256 * KIB, 32 * KIB)
    )


def test_the_budget_is_kept(files, monkeypatch):
    reads = ReadLog(monkeypatch, tick_s=0.1)
    line = recheck_storage(0, files, 4 * KIB, readers=2, budget_s=2.0, clock=reads.clock)
    max_s = 0.25 + 3 * 0.1  # one read is not counted, and each reader finishes its last one
    assert [seconds <= max_s + 1e-9 for seconds in reads.slice_seconds] == [True] * 8
    assert line.sequential_alone == pytest.approx(4 * KIB / 0.1)


def test_the_number_of_random_reads_is_limited(files, monkeypatch):
    monkeypatch.setattr(recheck_module, "MAX_RANDOM_READS", 8)
    reads = ReadLog(monkeypatch, tick_s=1e-6)
    recheck_storage(0, files, 4 * KIB, readers=2, clock=reads.clock)
    assert [len(each) for each in reads.slices[1:]] == [256] * 4 + [8] * 4
    assert len(set(reads.slices[5])) == 8


def test_the_size_of_reads_is_aligned_and_limited(files):
    assert recheck_storage(0, files, 1, 2, budget_s=0.01).read_bytes == 4096
    assert recheck_storage(0, files, 5000, 2, budget_s=0.01).read_bytes == 4096
    assert recheck_storage(0, files, 1 << 40, 2, budget_s=0.01).read_bytes == 1 << 20


def test_the_number_of_readers_is_limited(files):
    assert recheck_storage(0, files, 4096, 500, budget_s=0.01).readers == MAX_READERS


@pytest.mark.parametrize("readers", [0, 1])
def test_fewer_than_two_readers_are_not_measured(files, readers):
    assert recheck_storage(0, files, 4096, readers) is None


def test_paths_that_are_missing_empty_or_not_regular_files_are_skipped(files, tmp_path):
    (tmp_path / "empty").touch()
    odd = [str(tmp_path / "gone"), str(tmp_path / "empty"), str(tmp_path), "", "\0", "/dev/null"]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        odd.append(str(tmp_path / "pipe"))  # opening it would block until there is a writer
    assert recheck_storage(0, odd, 4096, 2) is None
    assert recheck_storage(0, [], 4096, 2) is None
    assert recheck_storage(0, [*odd, *files], 4096, 2, budget_s=0.01).folder == str(tmp_path)


def test_a_file_that_is_truncated_meanwhile_gives_fewer_bytes(files, monkeypatch):
    reads = ReadLog(monkeypatch, tick_s=0.001)
    real = recheck_module._ReadBenchmark.sequential_rate

    def truncate_first(benchmark, readers):
        for path in files:
            os.truncate(path, 0)
        return real(benchmark, readers)

    monkeypatch.setattr(recheck_module._ReadBenchmark, "sequential_rate", truncate_first)
    assert recheck_storage(0, files, 64 * KIB, 2, clock=reads.clock).sequential_alone == 0.0


@pytest.mark.parametrize("cold", [True, False])
def test_cold_is_false_if_the_pages_of_a_file_cannot_be_dropped(files, monkeypatch, cold):
    monkeypatch.setattr(recheck_module, "drop_pages", lambda path: cold or not path.name.startswith("2"))
    assert recheck_storage(0, files, 4096, 2, budget_s=0.01).cold is cold


# -- recordings ----------------------------------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path, files):
    """Return a function that writes the recording of a run whose two workers read these files."""

    def write(*, waited=0.9, read_bytes=1 << 20, paths=files):
        path = tmp_path / "run.jsonl"
        recorder = Recorder(path, RunLine())
        recorder.put(LoaderLine(loader=0))
        for worker in (0, 1):
            detail = {"paths": [*paths[worker::2], 7]}
            recorder.put(EventLine(what="files", at_s=0.1, loader=0, worker=worker, detail=detail))
            recorder.put(
                FetchLine(
                    loader=0,
                    batch=worker,
                    worker=worker,
                    at_s=0.1,
                    fetch_s=1.0,
                    cpu_s=1 - waited,
                    read_bytes=read_bytes,
                    reads=read_bytes // 8192,
                )
            )
        recorder.close()
        return path

    return write


def test_the_result_is_appended_to_the_recording(record):
    clock = FakeClock()
    path = record()
    line = add_storage_recheck(path, clock)
    assert (line.loader, line.readers, line.read_bytes) == (0, 2, 8192)
    assert load(path).storage == (line,)
    assert load(path).notes == ()


@pytest.mark.parametrize("run", [{"waited": 0.1}, {"read_bytes": 1000}, {"paths": []}])
def test_nothing_is_measured_if_workers_read_or_waited_little_or_no_file_is_known(record, run):
    path = record(**run)
    before = path.read_bytes()
    assert add_storage_recheck(path) is None
    assert path.read_bytes() == before
