"""One at a time, across processes."""

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
        with open(begun, "a") as told:
            told.write("begun\\n")
        made.write_text("done")
"""


def test_of_many_processes_one_does_the_work_and_the_others_find_it_done(tmp_path):
    command = [sys.executable, "-c", BUILD, tmp_path / "made", tmp_path / "begun"]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
    for worker in workers:
        worker.stdin.close()
    assert [worker.wait() for worker in workers] == [0] * 4
    assert (tmp_path / "begun").read_text() == "begun\n"


def test_whoever_fails_lets_the_next_one_in():
    with pytest.raises(ValueError, match="no"), keyed_lock("work", "it"):
        raise ValueError("no")
    entered = False
    with keyed_lock("work", "it"):
        entered = True
    assert entered


def test_without_a_cache_everybody_goes_ahead(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    entered = False
    with keyed_lock("work", "it"):
        entered = True
    assert entered


def test_locks_do_not_pile_up():
    for number in range(3 * LOCKS):
        with keyed_lock("work", f"shard {number}"):
            pass
    assert 1 < len(list(cache_dir("work").iterdir())) <= LOCKS
