import os

import pytest

from penstock.recording.format import EventLine, RunLine
from penstock.recording.reader import Recording
from penstock.storage.page_cache import ReadMethod
from penstock.verify import cold_cache as cold
from penstock.verify.cold_cache import drop_files, files_read, files_under


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


def test_folders_are_walked_and_only_files_are_returned(tmp_path, files):
    os.mkfifo(tmp_path / "data" / "pipe")
    assert sorted(files_under([tmp_path / "data", tmp_path / "none"])) == sorted(files)
    assert files_under([files[0]]) == [files[0]]


def test_files_beside_a_recorded_file_count_as_read(files, tmp_path):
    assert files_read(recording(files[0], tmp_path / "gone" / "x")) == files[:2]
    assert files_read(recording()) == []


def test_number_of_files_is_limited(files, tmp_path, monkeypatch):
    monkeypatch.setattr(cold, "MAX_FILES", 2)
    assert len(files_under([tmp_path])) == 2


def test_files_on_a_disk_are_dropped(files, monkeypatch):
    monkeypatch.setattr(cold, "choose_method", lambda path, storage: ReadMethod.DROPPED)
    seen = []
    monkeypatch.setattr(cold, "drop_pages", lambda path: seen.append(path) or True)
    found = drop_files(files)
    assert (found.files, found.cold, found.why) == (3, True, "")
    assert seen == files


def test_real_pages_are_dropped_or_the_reason_is_given(files):
    found = drop_files(files)
    assert found.cold is (found.why == "")


def refuse(path):
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize(("answer", "why"), [(lambda path: False, "stays in the cache"), (refuse, "Permission denied")])
def test_cache_is_not_cold_if_files_cannot_be_dropped(files, monkeypatch, answer, why):
    monkeypatch.setattr(cold, "choose_method", lambda path, storage: ReadMethod.DROPPED)
    monkeypatch.setattr(cold, "drop_pages", answer)
    found = drop_files(files)
    assert not found.cold
    assert "3 of 3 files were not dropped" in found.why
    assert why in found.why


def test_files_in_memory_are_never_cold(files, monkeypatch):
    monkeypatch.setattr(cold, "choose_method", lambda path, storage: ReadMethod.WARM)
    assert "cannot be read past the cache" in drop_files(files).why


def test_system_without_posix_fadvise_is_reported(files, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise")
    assert "this system" in drop_files(files).why


def test_cache_is_not_cold_without_files():
    assert drop_files([]).why == "it is not known which files the run reads"
