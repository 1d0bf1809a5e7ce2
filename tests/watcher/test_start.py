"""What runs beside a watched training, and how all of it ends."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from penstock.recording.format import EventLine, HopsLine
from penstock.recording.reader import load
from penstock.watcher import start
from penstock.watcher.start import WatchedRun

BEGIN = """\
import os, sys, penstock
watched = penstock.watch(range(5), record="run.jsonl", live=False)
"""


@pytest.fixture
def record(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def script(tmp_path):
    """Runs a script that watches, in an interpreter of its own."""

    def run(body, code=0, **environment):
        path = tmp_path / "train.py"
        path.write_text(
            "import os, sys, penstock\nwatched = penstock.watch(range(5), record='run.jsonl', live=False)\n"
        )
        with path.open("a") as file:
            file.write(textwrap.dedent(body))
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        done = subprocess.run(
            [sys.executable, path],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(temporary), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        assert list(temporary.iterdir()) == []
        return load(tmp_path / "run.jsonl"), done

    return run


class Side:
    """A loader that says so much, or fails to."""

    number = 7

    def __init__(self, error=None):
        self.error = error
        self.polled = threading.Event()

    def processes(self):
        return {os.getpid() + 1: 2}

    def poll(self, at_s):
        self.polled.set()
        if self.error is not None:
            raise self.error
        return [HopsLine(loader=7, at_s=at_s)]


# -- the end -------------------------------------------------------------------------------------------------------


def test_the_end_has_the_exit_code_and_comes_last(record):
    watching = WatchedRun(record)
    watching.close(3, "raised")
    watching.close(0, "done")
    assert record.read_text().splitlines()[-1].startswith('{"kind":"end"')
    assert (load(record).end.exit_code, load(record).end.how) == (3, "raised")


def test_the_first_line_says_who_ran(record, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "1"])
    WatchedRun(record).close()
    run = load(record).run
    assert (run.rank, run.world_size, run.command, run.pid) == (3, 8, ("train.py", "--epochs", "1"), os.getpid())


def test_a_sink_that_cannot_take_the_end_keeps_no_other_from_it(record):
    class Refusing:
        def put(self, line):
            raise OSError("gone")

        def close(self):
            raise OSError("gone")

    WatchedRun(record, [Refusing()]).close(1, "raised")
    assert load(record).end.exit_code == 1


def test_a_script_that_clears_the_collectors_callbacks_has_its_end_too(record):
    watching, before = WatchedRun(record), gc.callbacks.copy()
    gc.callbacks.clear()
    try:
        watching.close()
    finally:
        gc.callbacks[:] = [callback for callback in before if "penstock" not in callback.__module__]
    assert load(record).end.how == "done"


def test_closing_takes_what_loaders_have_left_to_say(record):
    watching = WatchedRun(record)
    watching.sides.append(Side())
    watching.close()
    assert [line.loader for line in load(record).hops] == [7]


def test_a_loader_that_fails_at_the_end_fails_nothing_else(record, caplog):
    watching = WatchedRun(record)
    watching.sides.append(Side(ValueError("no more")))
    watching.close()
    found = load(record)
    assert [event.detail["error"] for event in found.events] == ["ValueError: no more"]
    assert found.end.how == "done"
    assert caplog.messages == ["watching stopped: ValueError: no more"]


# -- meanwhile -----------------------------------------------------------------------------------------------------


def test_housekeeping_polls_while_the_training_runs(record, monkeypatch):
    monkeypatch.setattr(start, "POLL_S", 0.001)
    watching, side = WatchedRun(record), Side()
    watching.sides.append(side)
    assert side.polled.wait(30)
    watching.close()
    assert not watching._housekeeper.is_alive()


def test_an_error_in_the_housekeeping_turns_the_watching_off(record, monkeypatch, caplog):
    monkeypatch.setattr(start, "POLL_S", 0.001)
    watching, side = WatchedRun(record), Side(RuntimeError("no stats"))
    watching.sides.append(side)
    watching._housekeeper.join(30)
    assert watching.session.off
    watching.sides.clear()
    watching.close()
    assert [event.what for event in load(record).events] == ["watcher_failed"]
    assert caplog.messages == ["watching stopped: RuntimeError: no stats"]


def test_lines_of_the_spool_are_recorded(record):
    watching = WatchedRun(record)
    watching.worker_files.put(EventLine(what="checkpoint", at_s=1.0))
    watching.close()
    assert [event.what for event in load(record).events] == ["checkpoint"]


def test_fetches_that_wait_for_an_earlier_task_are_told_at_the_end(record):
    """Whose fate will never be known: a worker has died, or the pass was left."""
    watching = WatchedRun(record)
    fetch = '{"kind":"fetch","loader":0,"worker":1,"batch":-1,"at_s":1.0,"fetch_s":0.5}'
    (watching.worker_files.folder / "w-0.jsonl").write_text(f'{{"loader":0,"task":5,"line":{fetch}}}\n')
    watching.close()
    assert [(fetch.worker, fetch.batch) for fetch in load(record).fetches] == [(1, -1)]


def test_workers_are_known_by_their_loaders_number(record):
    watching = WatchedRun(record)
    watching.sides.append(Side())
    assert watching._workers() == {os.getpid() + 1: (7, 2)}
    watching.close()


def test_with_nobody_to_tell_nothing_runs(monkeypatch):
    before = set(threading.enumerate())
    watching = WatchedRun(None)
    assert (watching.idle, watching.session.off) == (True, True)
    assert set(threading.enumerate()) == before
    watching.close()


# -- the interpreter's end -----------------------------------------------------------------------------------------


def test_a_script_that_forgets_to_close_has_a_whole_recording(script):
    found, done = script("for batch in watched: pass\n")
    assert len(found.steps) == 5
    assert (found.end.how, found.end.exit_code, found.notes, done.stderr) == ("done", 0, (), "")


def test_a_script_that_raises_is_not_said_to_be_done(script):
    found, done = script("for batch in watched:\n    if batch == 2: raise ValueError('bad')\n", code=1)
    assert [step.batch for step in found.steps] == [0, 1, 2]
    assert (found.end.how, found.end.exit_code) == ("raised", 1)
    assert done.stderr.endswith("ValueError: bad\n")
    assert "penstock" not in done.stderr


def test_a_script_that_is_interrupted_says_so(script):
    found, _ = script("import signal\nfor batch in watched: os.kill(os.getpid(), signal.SIGINT)\n", code=-2)
    assert (found.end.how, found.end.exit_code) == ("interrupted", 130)


def test_a_script_that_exits_keeps_its_code(script):
    found, _ = script("for batch in watched: sys.exit(5)\n", code=5)
    assert found.end is not None


# -- a fork in the middle ------------------------------------------------------------------------------------------

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@forks
@pytest.mark.parametrize("way", ["sys.exit()", "os._exit(0)", "raise SystemExit", "watched.close(); sys.exit()"])
def test_a_forked_childs_end_is_not_the_parents(script, way):
    found, _ = script(f"""
        for batch in watched:
            if batch == 1:
                child = os.fork()
                if not child:
                    {way}
                assert os.waitpid(child, 0)[1] == 0
    """)
    assert [step.batch for step in found.steps] == [0, 1, 2, 3, 4]
    assert (found.end.how, found.notes) == ("done", ())


@forks
def test_a_forked_child_that_trains_on_writes_nothing_to_the_parents_recording(script):
    found, _ = script("""
        for batch in watched:
            if batch == 1 and not os.fork():
                with watched.phase("forward"): pass
                for _ in penstock.watch(range(7), name="child"): pass
                sys.exit()
        os.wait()
    """)
    assert [(step.loader, step.batch) for step in found.steps] == [(0, at) for at in range(5)]
    assert [loader.name for loader in found.loaders.values()] == [""]


@forks
def test_a_forked_child_can_be_recorded_on_its_own(script, tmp_path):
    found, _ = script("""
        for batch in watched:
            if batch == 1 and not os.fork():
                with penstock.watch(range(7), record="child.jsonl", live=False) as own:
                    for _ in own: pass
                sys.exit()
        os.wait()
    """)
    assert len(found.steps) == 5
    child = load(tmp_path / "child.jsonl")
    assert (len(child.steps), child.end.how) == (7, "done")
    assert child.run.pid != found.run.pid


@forks
def test_a_forked_child_leaves_the_parents_spool_alone(script):
    """Files that are read to their end are removed: the child must not read them."""
    found, _ = script("""
        import json
        from pathlib import Path
        note = {"loader": 0, "line": {"kind": "event", "what": "checkpoint", "at_s": 1.0}}
        for batch in watched:
            if batch == 1:
                folder = Path(watched._watching.worker_files.folder)
                (folder / "w-0.jsonl").write_text(json.dumps(note) + "\\n" + '{"closed":true}\\n')
                if not os.fork():
                    sys.exit()
                os.wait()
    """)
    assert [event.what for event in found.events] == ["checkpoint"]
