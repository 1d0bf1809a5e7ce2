"""Threads and samplers that run beside a watched training, and how a run ends."""

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
"""The first lines of every script in these tests."""


@pytest.fixture
def record(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def script(tmp_path):
    """Return a function that runs a watched script in an interpreter of its own and loads the recording."""

    def run(body, code=0, **environment):
        path = tmp_path / "train.py"
        path.write_text(BEGIN + textwrap.dedent(body))
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


class FakeLoaderView:
    """The view of a loader with one worker process. A poll returns one line, or raises `error`."""

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


def test_the_end_line_has_the_exit_code_and_comes_last(record):
    run = WatchedRun(record)
    run.close(3, "raised")
    run.close(0, "done")
    assert record.read_text().splitlines()[-1].startswith('{"kind":"end"')
    assert (load(record).end.exit_code, load(record).end.how) == (3, "raised")


def test_the_first_line_has_rank_command_and_process(record, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "1"])
    WatchedRun(record).close()
    run = load(record).run
    assert (run.rank, run.world_size, run.command, run.pid) == (3, 8, ("train.py", "--epochs", "1"), os.getpid())


def test_the_end_line_reaches_other_sinks_after_one_that_raises(record):
    class FailingSink:
        def put(self, line):
            raise OSError("gone")

        def close(self):
            raise OSError("gone")

    WatchedRun(record, [FailingSink()]).close(1, "raised")
    assert load(record).end.exit_code == 1


def test_closing_works_after_the_script_has_cleared_gc_callbacks(record):
    run, before = WatchedRun(record), gc.callbacks.copy()
    gc.callbacks.clear()
    try:
        run.close()
    finally:
        gc.callbacks[:] = [callback for callback in before if "penstock" not in callback.__module__]
    assert load(record).end.how == "done"


def test_closing_records_the_last_lines_of_loaders(record):
    run = WatchedRun(record)
    run.loader_views.append(FakeLoaderView())
    run.close()
    assert [line.loader for line in load(record).hops] == [7]


def test_an_error_in_a_loader_view_at_the_end_does_not_lose_the_end_line(record, caplog):
    run = WatchedRun(record)
    run.loader_views.append(FakeLoaderView(ValueError("no more")))
    run.close()
    recording = load(record)
    assert [event.detail["error"] for event in recording.events] == ["ValueError: no more"]
    assert recording.end.how == "done"
    assert caplog.messages == ["watching stopped: ValueError: no more"]


# -- while it runs -------------------------------------------------------------------------------------------------


def test_loaders_are_polled_while_the_training_runs(record, monkeypatch):
    monkeypatch.setattr(start, "POLL_S", 0.001)
    run, view = WatchedRun(record), FakeLoaderView()
    run.loader_views.append(view)
    assert view.polled.wait(30)
    run.close()
    assert not run._poll_thread.is_alive()


def test_an_error_in_a_poll_turns_the_watching_off(record, monkeypatch, caplog):
    monkeypatch.setattr(start, "POLL_S", 0.001)
    run, view = WatchedRun(record), FakeLoaderView(RuntimeError("no stats"))
    run.loader_views.append(view)
    run._poll_thread.join(30)
    assert run.session.off
    run.loader_views.clear()
    run.close()
    assert [event.what for event in load(record).events] == ["watcher_failed"]
    assert caplog.messages == ["watching stopped: RuntimeError: no stats"]


def test_lines_of_the_worker_files_are_recorded(record):
    run = WatchedRun(record)
    run.worker_files.put(EventLine(what="checkpoint", at_s=1.0))
    run.close()
    assert [event.what for event in load(record).events] == ["checkpoint"]


def test_fetches_that_wait_for_an_earlier_task_are_recorded_at_the_end(record):
    """The earlier task may never end, because its worker has died or the epoch was left."""
    run = WatchedRun(record)
    fetch = '{"kind":"fetch","loader":0,"worker":1,"batch":-1,"at_s":1.0,"fetch_s":0.5}'
    (run.worker_files.folder / "w-0.jsonl").write_text(f'{{"loader":0,"task":5,"line":{fetch}}}\n')
    run.close()
    assert [(fetch.worker, fetch.batch) for fetch in load(record).fetches] == [(1, -1)]


def test_worker_processes_are_known_by_loader_and_worker_number(record):
    run = WatchedRun(record)
    run.loader_views.append(FakeLoaderView())
    assert run._worker_processes() == {os.getpid() + 1: (7, 2)}
    run.close()


def test_without_sinks_no_thread_is_started(monkeypatch):
    before = set(threading.enumerate())
    run = WatchedRun(None)
    assert (run.idle, run.session.off) == (True, True)
    assert set(threading.enumerate()) == before
    run.close()


# -- the exit of the interpreter -----------------------------------------------------------------------------------


def test_a_script_that_does_not_close_its_watch_has_a_complete_recording(script):
    recording, done = script("for batch in watched: pass\n")
    assert len(recording.steps) == 5
    assert (recording.end.how, recording.end.exit_code, recording.notes, done.stderr) == ("done", 0, (), "")


def test_a_script_that_raises_is_recorded_as_raised(script):
    recording, done = script("for batch in watched:\n    if batch == 2: raise ValueError('bad')\n", code=1)
    assert [step.batch for step in recording.steps] == [0, 1, 2]
    assert (recording.end.how, recording.end.exit_code) == ("raised", 1)
    assert done.stderr.endswith("ValueError: bad\n")
    assert "penstock" not in done.stderr


def test_a_script_that_is_interrupted_is_recorded_as_interrupted(script):
    recording, _ = script("import signal\nfor batch in watched: os.kill(os.getpid(), signal.SIGINT)\n", code=-2)
    assert (recording.end.how, recording.end.exit_code) == ("interrupted", 130)


def test_a_script_that_calls_sys_exit_keeps_its_exit_code(script):
    recording, _ = script("for batch in watched: sys.exit(5)\n", code=5)
    assert recording.end is not None


# -- a fork during the training ------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@needs_fork
@pytest.mark.parametrize(
    "exit_statement", ["sys.exit()", "os._exit(0)", "raise SystemExit", "watched.close(); sys.exit()"]
)
def test_the_exit_of_a_forked_child_does_not_end_the_parents_recording(script, exit_statement):
    recording, _ = script(f"""
        for batch in watched:
            if batch == 1:
                child = os.fork()
                if not child:
                    {exit_statement}
                assert os.waitpid(child, 0)[1] == 0
    """)
    assert [step.batch for step in recording.steps] == [0, 1, 2, 3, 4]
    assert (recording.end.how, recording.notes) == ("done", ())


@needs_fork
def test_a_forked_child_that_goes_on_training_writes_nothing_to_the_parents_recording(script):
    recording, _ = script("""
        for batch in watched:
            if batch == 1 and not os.fork():
                with watched.phase("forward"): pass
                for _ in penstock.watch(range(7), name="child"): pass
                sys.exit()
        os.wait()
    """)
    assert [(step.loader, step.batch) for step in recording.steps] == [(0, at) for at in range(5)]
    assert [loader.name for loader in recording.loaders.values()] == [""]


@needs_fork
def test_a_forked_child_can_make_its_own_recording(script, tmp_path):
    recording, _ = script("""
        for batch in watched:
            if batch == 1 and not os.fork():
                with penstock.watch(range(7), record="child.jsonl", live=False) as own:
                    for _ in own: pass
                sys.exit()
        os.wait()
    """)
    assert len(recording.steps) == 5
    child = load(tmp_path / "child.jsonl")
    assert (len(child.steps), child.end.how) == (7, "done")
    assert child.run.pid != recording.run.pid


@needs_fork
def test_a_forked_child_does_not_read_the_worker_files_of_its_parent(script):
    """The reader removes a file after its last line, so the child would take lines from the parent."""
    recording, _ = script("""
        import json
        from pathlib import Path
        note = {"loader": 0, "line": {"kind": "event", "what": "checkpoint", "at_s": 1.0}}
        for batch in watched:
            if batch == 1:
                folder = Path(watched._run.worker_files.folder)
                (folder / "w-0.jsonl").write_text(json.dumps(note) + "\\n" + '{"closed":true}\\n')
                if not os.fork():
                    sys.exit()
                os.wait()
    """)
    assert [event.what for event in recording.events] == ["checkpoint"]
