"""Reading once more after the run: real files, and a clock that the test owns where time matters."""

import os
from pathlib import Path

import pytest

from penstock.recording.format import EventLine, FetchLine, LoaderLine, RunLine
from penstock.recording.reader import load
from penstock.recording.writer import Recorder
from penstock.testing import FakeClock
from penstock.watcher.machine import storage_recheck as afterlook
from penstock.watcher.machine.storage_recheck import MOST_READERS, add_storage_recheck, recheck_storage

KIB = 1 << 10


@pytest.fixture
def files(tmp_path):
    """Four of 256 KiB."""
    paths = [tmp_path / f"{number}.tar" for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(256 * KIB))
    return [str(path) for path in paths]


class Reads:
    """A clock that ticks at every look at it, and remembers who read what."""

    def __init__(self, monkeypatch, tick_s):
        self.clock = FakeClock()
        self.places = []
        self.slices = [[]]
        real = afterlook.ColdFile.read_into
        rate = afterlook._FileReads._rate

        def read_into(file, buffer, offset, length):
            self.clock.advance(tick_s)
            self.slices[-1].append((file.path.name, offset, length))
            return real(file, buffer, offset, length)

        def counted(look, ways, *, scattered):
            self.slices.append([])
            began = self.clock.now()
            found = rate(look, ways, scattered=scattered)
            self.in_line.append(self.slices[-1].pop(0))
            self.took_s.append(self.clock.now() - began)
            return found

        self.took_s = []
        self.in_line = []
        """The read before each slice, which does not count."""
        monkeypatch.setattr(afterlook.ColdFile, "read_into", read_into)
        monkeypatch.setattr(afterlook._FileReads, "_rate", counted)


def test_rates_of_real_files_are_rates(files):
    line = recheck_storage(3, files, 64 * KIB, readers=4, budget_s=0.4)
    assert (line.loader, line.readers, line.read_bytes) == (3, 4, 64 * KIB)
    assert line.folder == str(Path(files[0]).parent)
    rates = (line.sequential_alone, line.sequential_together, line.random_alone, line.random_together)
    assert all(1e3 < rate < 1e12 for rate in rates), rates


def test_what_was_read_ahead_and_is_still_queued_does_not_count_against_the_next(files, monkeypatch):
    clock = FakeClock()
    debt = [0.0]
    real_read, real_drop = afterlook.ColdFile.read_into, afterlook.ColdFile.drop

    def read_into(file, buffer, offset, length):
        clock.advance(0.001 + debt.pop() if debt else 0.001)
        return real_read(file, buffer, offset, length)

    def drop(file, *, random):
        real_drop(file, random=random)
        debt[:] = [10.0]  # a slow device still has much to do of what came before

    monkeypatch.setattr(afterlook.ColdFile, "read_into", read_into)
    monkeypatch.setattr(afterlook.ColdFile, "drop", drop)
    line = recheck_storage(0, files, 64 * KIB, readers=2, clock=clock)
    assert line.random_alone == pytest.approx(64 * KIB / 0.001, rel=0.1)
    assert line.sequential_alone == pytest.approx(64 * KIB / 0.001, rel=0.1)


def test_every_pattern_reads_every_place_once_if_there_is_time(files, monkeypatch):
    reads = Reads(monkeypatch, tick_s=1e-6)
    recheck_storage(0, files, 64 * KIB, readers=2, clock=reads.clock)
    everything = sorted((Path(path).name, at, 64 * KIB) for path in files for at in range(0, 256 * KIB, 64 * KIB))
    assert [sorted(each) for each in reads.slices[1:]] == [everything] * 8  # alone, together, together, alone
    row, scattered = reads.slices[1], reads.slices[5]
    assert row == everything
    assert scattered != everything


def test_more_readers_than_files_share_them_in_stretches(files, monkeypatch):
    reads = Reads(monkeypatch, tick_s=1e-6)
    recheck_storage(0, files[:2], 32 * KIB, readers=6, clock=reads.clock)
    together = reads.slices[3]
    assert sorted(together) == sorted(
        (Path(p).name, at, 32 * KIB) for p in files[:2] for at in range(0, 256 * KIB, 32 * KIB)
    )


def test_the_budget_is_kept(files, monkeypatch):
    reads = Reads(monkeypatch, tick_s=0.1)
    line = recheck_storage(0, files, 4 * KIB, readers=2, budget_s=2.0, clock=reads.clock)
    most_s = 0.25 + 3 * 0.1  # one read stands in line, and each reader ends its last one
    assert [seconds <= most_s + 1e-9 for seconds in reads.took_s] == [True] * 8
    assert line.sequential_alone == pytest.approx(4 * KIB / 0.1)


def test_no_more_places_are_drawn_than_can_be_read(files, monkeypatch):
    monkeypatch.setattr(afterlook, "MOST_PLACES", 8)
    reads = Reads(monkeypatch, tick_s=1e-6)
    recheck_storage(0, files, 4 * KIB, readers=2, clock=reads.clock)
    assert [len(each) for each in reads.slices[1:]] == [256] * 4 + [8] * 4
    assert len(set(reads.slices[5])) == 8


def test_reads_are_aligned_and_of_a_size_that_disks_see(files):
    assert recheck_storage(0, files, 1, 2, budget_s=0.01).read_bytes == 4096
    assert recheck_storage(0, files, 5000, 2, budget_s=0.01).read_bytes == 4096
    assert recheck_storage(0, files, 1 << 40, 2, budget_s=0.01).read_bytes == 1 << 20


def test_no_more_readers_than_tell_something(files):
    assert recheck_storage(0, files, 4096, 500, budget_s=0.01).readers == MOST_READERS


@pytest.mark.parametrize("readers", [0, 1])
def test_one_reader_has_nobody_to_share_with(files, readers):
    assert recheck_storage(0, files, 4096, readers) is None


def test_files_that_are_gone_empty_or_no_files_are_passed_over(files, tmp_path):
    (tmp_path / "empty").touch()
    odd = [str(tmp_path / "gone"), str(tmp_path / "empty"), str(tmp_path), "", "\0", "/dev/null"]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        odd.append(str(tmp_path / "pipe"))  # opening it would wait for a writer
    assert recheck_storage(0, odd, 4096, 2) is None
    assert recheck_storage(0, [], 4096, 2) is None
    assert recheck_storage(0, [*odd, *files], 4096, 2, budget_s=0.01).folder == str(tmp_path)


def test_a_file_that_is_cut_meanwhile_reads_as_less(files, monkeypatch):
    reads = Reads(monkeypatch, tick_s=0.001)
    real = afterlook._FileReads.in_row

    def cut_first(look, readers):
        for path in files:
            os.truncate(path, 0)
        return real(look, readers)

    monkeypatch.setattr(afterlook._FileReads, "in_row", cut_first)
    assert recheck_storage(0, files, 64 * KIB, 2, clock=reads.clock).sequential_alone == 0.0


@pytest.mark.parametrize("cold", [True, False])
def test_a_page_cache_that_cannot_be_kept_out_is_said(files, monkeypatch, cold):
    monkeypatch.setattr(afterlook, "drop_pages", lambda path: cold or not path.name.startswith("2"))
    assert recheck_storage(0, files, 4096, 2, budget_s=0.01).cold is cold


# -- for a recording -----------------------------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path, files):
    """Of a run whose two workers read these files."""

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


def test_what_the_storage_gave_is_added_to_the_recording(record):
    clock = FakeClock()
    path = record()
    line = add_storage_recheck(path, clock)
    assert (line.loader, line.readers, line.read_bytes) == (0, 2, 8192)
    assert load(path).storage == (line,)
    assert load(path).notes == ()


@pytest.mark.parametrize("run", [{"waited": 0.1}, {"read_bytes": 1000}, {"paths": []}])
def test_where_nothing_is_to_be_decided_nothing_is_read(record, run):
    path = record(**run)
    before = path.read_bytes()
    assert add_storage_recheck(path) is None
    assert path.read_bytes() == before
