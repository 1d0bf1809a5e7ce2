import os

import pytest

from penstock.recording.format import EventLine, RunLine
from penstock.recording.reader import Recording
from penstock.storage.page_cache import ReadMethod
from penstock.verify import cold_cache as cold
from penstock.verify.cold_cache import drop, files_read, files_under


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "data" / name for name in ("a.bin", "b.bin", "deep/c.bin")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1 << 16))
    return paths


def recording(*paths):
    detail = {"paths": [*map(str, paths), 7]}
    return Recording(
        run=RunLine(), loaders={}, events=(EventLine(what="files", at_s=0.0, loader=0, worker=0, detail=detail),)
    )


def test_folders_are_walked_and_what_is_no_file_is_left_out(tmp_path, files):
    os.mkfifo(tmp_path / "data" / "pipe")
    assert sorted(files_under([tmp_path / "data", tmp_path / "none"])) == sorted(files)
    assert files_under([files[0]]) == [files[0]]


def test_what_lies_beside_a_file_that_workers_read_is_taken_for_read(files, tmp_path):
    assert files_read(recording(files[0], tmp_path / "gone" / "x")) == files[:2]
    assert files_read(recording()) == []


def test_no_endless_walk(files, tmp_path, monkeypatch):
    monkeypatch.setattr(cold, "MOST_FILES", 2)
    assert len(files_under([tmp_path])) == 2


def test_files_on_a_disk_are_dropped(files, monkeypatch):
    monkeypatch.setattr(cold, "choose_method", lambda path, storage: ReadMethod.DROPPED)
    seen = []
    monkeypatch.setattr(cold, "drop_pages", lambda path: seen.append(path) or True)
    found = drop(files)
    assert (found.files, found.cold, found.why) == (3, True, "")
    assert seen == files


def test_dropping_for_real_either_works_or_says_why(files):
    found = drop(files)
    assert found.cold is (found.why == "")


def refuse(path):
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize(("answer", "why"), [(lambda path: False, "stays in the cache"), (refuse, "Permission denied")])
def test_what_cannot_be_dropped_is_not_called_cold(files, monkeypatch, answer, why):
    monkeypatch.setattr(cold, "choose_method", lambda path, storage: ReadMethod.DROPPED)
    monkeypatch.setattr(cold, "drop_pages", answer)
    found = drop(files)
    assert not found.cold
    assert "3 of 3 files were not dropped" in found.why
    assert why in found.why


def test_memory_that_is_its_own_storage_is_never_cold(files, monkeypatch):
    monkeypatch.setattr(cold, "choose_method", lambda path, storage: ReadMethod.WARM)
    assert "cannot be read past the cache" in drop(files).why


def test_a_system_without_the_call_says_so(files, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise")
    assert "this system" in drop(files).why


def test_without_files_nothing_is_cold():
    assert drop([]).why == "which files the run reads is not known"
