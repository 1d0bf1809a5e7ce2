"""The user's cache folder on each platform."""

import os
import stat

import pytest

from penstock.core.user_cache import cache_dir
from penstock.errors import SettingError, StorageError

posix = pytest.mark.skipif(os.name != "posix", reason="mode bits and owners are POSIX concepts")


def test_the_folder_of_the_variable_is_used_and_created(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "deep" / "mine"))
    folder = cache_dir("index", "v1")
    assert folder == tmp_path / "deep" / "mine" / "index" / "v1"
    assert folder.is_dir()


@posix
def test_folders_are_private(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "mine"))
    folder = cache_dir("index")
    assert {stat.S_IMODE(step.stat().st_mode) for step in (folder, folder.parent)} == {0o700}


def test_without_the_variable_the_xdg_folder_is_used_unless_it_is_relative(tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "penstock"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / "home" / ".cache" / "penstock"


def test_other_platforms_have_their_own_cache_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_dir() == tmp_path / "Library" / "Caches" / "penstock"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert cache_dir() == tmp_path / "Local" / "penstock" / "cache"


@pytest.fixture
def home_is_a_file(tmp_path, monkeypatch):
    (tmp_path / "home").write_text("not a folder")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return temporary


@posix
def test_a_home_that_cannot_be_written_is_replaced_by_a_private_temporary_folder(home_is_a_file):
    folder = cache_dir("index")
    assert folder == home_is_a_file / f"penstock-{os.getuid()}" / "index"
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


@posix
def test_a_temporary_folder_of_another_user_is_refused(home_is_a_file):
    elsewhere = home_is_a_file / "elsewhere"
    elsewhere.mkdir()
    (home_is_a_file / f"penstock-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(StorageError, match="PENSTOCK_CACHE"):
        cache_dir("index")


def test_a_variable_with_an_unusable_folder_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="PENSTOCK_CACHE"):
        cache_dir()


@pytest.mark.parametrize("part", ["", "..", ".", "a/b", "/etc"])
def test_a_part_that_is_not_a_plain_name_is_refused(part):
    with pytest.raises(SettingError):
        cache_dir(part)
