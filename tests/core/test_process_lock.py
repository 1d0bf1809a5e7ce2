"""Locks between processes."""

import subprocess
import sys

import pytest

from penstock.core.process_lock import LOCKS, keyed_lock
from penstock.core.user_cache import cache_dir

BUILD = """
import sys
from pathlib import Path
from penstock.core.process_lock import keyed_lock

made, begun = map(Path, sys.argv[1:])
sys.stdin.read()
with keyed_lock("work", str(made)):
    if not made.exists():
        with open(begun, "a") as file:
            file.write("begun\\n")
        made.write_text("done")
"""


def test_one_of_many_processes_does_the_work_and_the_others_use_its_result(tmp_path):
    command = [sys.executable, "-c", BUILD, tmp_path / "made", tmp_path / "begun"]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
    for worker in workers:
        worker.stdin.close()
    assert [worker.wait() for worker in workers] == [0] * 4
    assert (tmp_path / "begun").read_text() == "begun\n"


def test_an_error_releases_the_lock():
    with pytest.raises(ValueError, match="no"), keyed_lock("work", "it"):
        raise ValueError("no")
    entered = False
    with keyed_lock("work", "it"):
        entered = True
    assert entered


def test_without_a_usable_cache_the_caller_goes_ahead(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    entered = False
    with keyed_lock("work", "it"):
        entered = True
    assert entered


def test_the_number_of_lock_files_is_limited():
    for number in range(3 * LOCKS):
        with keyed_lock("work", f"shard {number}"):
            pass
    assert 1 < len(list(cache_dir("work").iterdir())) <= LOCKS
