"""Files of /proc as they are, whoever reads them."""

import os
import sys

import pytest

from penstock.watcher.machine.procfs import ProcFile, read_all, read_quickly


def test_both_ways_give_the_whole_file(tmp_path):
    file = tmp_path / "large"
    file.write_bytes(os.urandom(100_000))
    assert read_quickly(str(file)) == read_all(str(file)) == file.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_file_without_a_size_is_read_to_its_end():
    assert read_quickly("/proc/self/stat").startswith(b"%d (" % os.getpid())
    assert b"pgmajfault" in read_quickly("/proc/vmstat")


@pytest.mark.parametrize("read", [read_quickly, read_all])
def test_what_is_not_there_is_an_os_error_with_its_name(tmp_path, read):
    missing = str(tmp_path / "missing")
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with pytest.raises(FileNotFoundError, match="missing"):
        read(missing)
    with pytest.raises(IsADirectoryError):
        read(str(tmp_path))
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_kept_open_is_read_from_its_start_each_time(tmp_path):
    file = tmp_path / "counter"
    file.write_text("1")
    kept = ProcFile(str(file))
    assert kept.read() == b"1"
    file.write_text("22")
    assert kept.read() == b"22"
    assert ProcFile(str(tmp_path / "missing")).read() == b""
