import os
import stat

import pytest

from penstock.core.write_file import replace_file, write_result
from penstock.errors import SettingError, StorageError


def test_a_result_is_written_as_utf8_and_leaves_nothing_else(tmp_path):
    write_result(tmp_path / "out.md", "→ µ")
    assert (tmp_path / "out.md").read_bytes() == "→ µ".encode()
    assert os.listdir(tmp_path) == ["out.md"]


def test_an_earlier_file_keeps_its_permissions_and_a_new_one_has_those_of_the_umask(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o640)
    write_result(tmp_path / "old", "new")
    (tmp_path / "plain").touch()
    write_result(tmp_path / "new", "new")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "new", "plain")]
    assert modes == [0o640, modes[2], modes[2]]


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_result(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_result(tmp_path / "pipe", "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is of Linux")
def test_a_full_disk_is_an_error_of_the_storage():
    with pytest.raises(StorageError, match="cannot write /dev/full: No space left on device"):
        write_result("/dev/full", "x")


@pytest.mark.parametrize("name", ["no/such/folder", ".", "a\0b"])
def test_a_name_that_cannot_be_written_is_an_error_of_the_call(tmp_path, name):
    with pytest.raises(SettingError, match="Name a file in a folder that exists"):
        write_result(tmp_path / name, "x")


def test_a_write_that_fails_leaves_the_earlier_file_and_no_other(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("old")

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        replace_file(tmp_path / "old", b"new")
    assert os.listdir(tmp_path) == ["old"]
    assert (tmp_path / "old").read_text() == "old"
