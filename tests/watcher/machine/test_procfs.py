import os
import sys

import pytest

from penstock.watcher.machine.procfs import ProcFile, read_holding_gil, read_releasing_gil


def test_both_functions_return_the_whole_file(tmp_path):
    file = tmp_path / "large"
    file.write_bytes(os.urandom(100_000))
    assert read_holding_gil(str(file)) == read_releasing_gil(str(file)) == file.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_file_without_a_size_is_read_to_its_end():
    assert read_holding_gil("/proc/self/stat").startswith(b"%d (" % os.getpid())
    assert b"pgmajfault" in read_holding_gil("/proc/vmstat")


@pytest.mark.parametrize("read", [read_holding_gil, read_releasing_gil])
def test_a_missing_file_raises_an_error_with_its_name_and_leaks_no_descriptor(tmp_path, read):
    missing = str(tmp_path / "missing")
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with pytest.raises(FileNotFoundError, match="missing"):
        read(missing)
    with pytest.raises(IsADirectoryError):
        read(str(tmp_path))
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_proc_file_is_read_from_its_start_each_time_and_is_empty_if_missing(tmp_path):
    file = tmp_path / "counter"
    file.write_text("1")
    kept = ProcFile(str(file))
    assert kept.read() == b"1"
    file.write_text("22")
    assert kept.read() == b"22"
    assert ProcFile(str(tmp_path / "missing")).read() == b""
