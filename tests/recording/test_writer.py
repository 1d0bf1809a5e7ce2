"""The recorder: what reaches the file, and what never reaches the training."""

import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from penstock.errors import RecordingError
from penstock.recording import writer as write
from penstock.recording.format import EndLine, EpochStartLine, EventLine, LoaderLine, LoaderSetting, RunLine, StepLine
from penstock.recording.reader import load
from penstock.recording.writer import Recorder

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def step(batch, **fields):
    return StepLine(loader=0, batch=batch, at_s=float(batch), wait_s=0.25, step_s=0.75, **fields)


@pytest.fixture
def slow_writer(monkeypatch):
    """The thread writes at close only, so that what waits is the test's to know."""
    monkeypatch.setattr(write, "WRITE_EVERY_S", 3600.0)


def test_what_was_put_is_in_the_file_after_close_in_order(tmp_path):
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, RunLine(pid=7, command=("train.py", "--lr", "1")))
    lines = [
        LoaderLine(loader=0, name="train"),
        EpochStartLine(loader=0, epoch=0, at_s=0.0),
        *map(step, range(2500)),
        EndLine(at_s=9.0),
    ]
    for line in lines:
        recorder.put(line)
    recorder.close()
    back = load(path)
    assert back.run == RunLine(pid=7, command=("train.py", "--lr", "1"))
    assert back.loaders == {0: lines[0]}
    assert back.steps == tuple(lines[2:-1])
    assert (back.end, back.notes) == (lines[-1], ())


def test_the_first_line_is_in_the_file_at_once(tmp_path, slow_writer):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine(pid=7))
    assert load(tmp_path / "run.jsonl").run.pid == 7
    recorder.close()


def test_lines_reach_the_file_without_a_close(tmp_path, monkeypatch):
    written = threading.Event()
    real = write._write_all

    def write_all(fd, data):
        real(fd, data)
        if b'"step"' in data:
            written.set()

    monkeypatch.setattr(write, "_write_all", write_all)
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.put(step(0))
    assert written.wait(30)
    assert load(tmp_path / "run.jsonl").steps == (step(0),)
    recorder.close()


KILLED = """
import sys, time
from penstock.recording.format import RunLine, StepLine
from penstock.recording.writer import Recorder
recorder = Recorder(sys.argv[1], RunLine())
batch = 0
while True:
    recorder.put(StepLine(loader=0, batch=batch, at_s=time.perf_counter(), wait_s=0.0, step_s=0.0))
    batch += 1
    time.sleep(0.001)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9")
def test_a_killed_run_leaves_a_file_that_loads(tmp_path):
    path = tmp_path / "run.jsonl"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    try:
        while not path.exists() or path.stat().st_size < 2000:
            assert child.poll() is None
            threading.Event().wait(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    back = load(path)
    assert [step.batch for step in back.steps] == list(range(len(back.steps)))
    assert len(back.steps) > 10
    assert back.end is None


def test_a_file_of_that_name_is_replaced(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("old\n" * 1000)
    Recorder(path, RunLine(pid=3)).close()
    assert path.read_text() == '{"kind":"run","pid":3}\n'


@pytest.mark.parametrize("make", [lambda folder: folder, lambda folder: folder / "no" / "run.jsonl"])
def test_a_place_that_cannot_be_written_is_refused_at_birth_with_advice(tmp_path, make):
    with pytest.raises(RecordingError, match="cannot record to") as caught:
        Recorder(make(tmp_path), RunLine())
    assert "folder that exists" in caught.value.advice


def test_a_name_that_no_system_takes_is_refused_too():
    with pytest.raises(RecordingError, match="null"):
        Recorder("a\0b", RunLine())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_disk_that_is_full_at_birth_is_refused():
    with pytest.raises(RecordingError, match="No space left"):
        Recorder("/dev/full", RunLine())


def test_a_disk_that_fills_up_ends_the_recording_with_one_warning_and_no_error(
    tmp_path, monkeypatch, caplog, slow_writer
):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())

    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write, "_write_all", full)
    for batch in range(1500):
        recorder.put(step(batch))
    with caplog.at_level(logging.WARNING, "penstock"):
        recorder.close()
    assert [record.getMessage().partition("stopped: ")[2] for record in caplog.records] == [
        "[Errno 28] No space left on device"
    ]
    assert recorder.dropped == 1500
    recorder.put(step(1))
    assert load(tmp_path / "run.jsonl").steps == ()


LIMITED = """
import resource, sys
from penstock.recording.format import RunLine, StepLine
from penstock.recording.writer import Recorder
recorder = Recorder(sys.argv[1], RunLine())
resource.setrlimit(resource.RLIMIT_FSIZE, (4321, 4321))
for batch in range(1000):
    recorder.put(StepLine(loader=0, batch=batch, at_s=batch, wait_s=0.0, step_s=0.0))
recorder.close()
print(recorder.dropped)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on a file's size")
def test_a_file_that_may_not_grow_keeps_what_it_took_and_the_script_goes_on(tmp_path):
    path = tmp_path / "run.jsonl"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True)
    assert "stopped: [Errno 27] File too large" in done.stderr
    assert int(done.stdout) == 1000  # the part that was written cannot be known line by line
    back = load(path)
    assert [step.batch for step in back.steps] == list(range(len(back.steps)))
    assert 0 < len(back.steps) < 100
    assert any("cut short at the end" in note for note in back.notes)


def test_lines_that_come_after_the_disk_refused_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "WRITE_EVERY_S", 0.001)
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    monkeypatch.setattr(write, "_write_all", lambda fd, data: 1 / 0)
    recorder.put(step(0))
    recorder._thread.join(30)
    recorder.put(step(1))
    assert recorder.dropped == 2
    recorder.close()


def test_lines_beyond_what_may_wait_are_dropped_and_told_in_the_end_line(tmp_path, monkeypatch, slow_writer):
    monkeypatch.setattr(write, "WAITING_MAX", 10)
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    for batch in range(25):
        recorder.put(step(batch))
    recorder.put(EndLine(at_s=30.0))
    recorder.close()
    back = load(tmp_path / "run.jsonl")
    assert [step.batch for step in back.steps] == list(range(10))
    assert back.end.dropped == recorder.dropped == 15
    assert any(note.startswith("15 lines were lost while recording") for note in back.notes)


def test_nothing_is_written_after_close_and_a_second_close_does_nothing(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.close()
    recorder.put(step(0))
    recorder.close()
    assert load(tmp_path / "run.jsonl").steps == ()
    assert recorder.dropped == 0


@needs_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_nothing_of_its_own_and_nothing_twice(tmp_path, slow_writer):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.put(step(0))
    child = os.fork()
    if child == 0:
        recorder.put(step(1))
        recorder.close()
        os._exit(len(recorder._waiting))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    recorder.put(step(2))
    recorder.close()
    assert [step.batch for step in load(tmp_path / "run.jsonl").steps] == [0, 2]


class Sulky:
    def __repr__(self):
        raise RuntimeError("no")


def test_settings_of_any_type_are_written_by_their_repr_and_those_without_one_are_counted(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.put(LoaderLine(loader=0, settings={"sampler": LoaderSetting(requested=range(3), in_force={1, 2})}))
    recorder.put(LoaderLine(loader=1, settings={"sampler": LoaderSetting(requested=Sulky())}))
    recorder.put(step(0))
    recorder.put(EndLine(at_s=1.0))
    recorder.close()
    back = load(tmp_path / "run.jsonl")
    assert back.loaders == {
        0: LoaderLine(loader=0, settings={"sampler": LoaderSetting(requested="range(0, 3)", in_force=[1, 2])})
    }
    assert (back.steps, back.end.dropped) == ((step(0),), 1)


def test_an_argument_that_is_not_utf8_does_not_cost_the_line(tmp_path):
    Recorder(tmp_path / "run.jsonl", RunLine(command=("train.py", "\udcff.tar"))).close()
    assert load(tmp_path / "run.jsonl").run.command == ("train.py", "?.tar")


def test_a_number_that_is_none_is_left_out_when_read_back(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.put(step(0, phases={"forward": float("nan"), "backward": 0.5}))
    recorder.put(StepLine(loader=0, batch=1, at_s=1.0, wait_s=float("nan"), step_s=0.0))
    recorder.put(EventLine(what="gc", at_s=2.0, seconds=float("inf")))
    recorder.close()
    back = load(tmp_path / "run.jsonl")
    assert back.steps == (step(0, phases={"backward": 0.5}),)
    assert back.events == (EventLine(what="gc", at_s=2.0),)
    assert back.notes[0] == "2 lines used without the numbers that are null in them (line 2; line 4)"
    assert back.notes[1].startswith("1 line skipped: damaged (line 3: ")


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no /dev/null")
def test_a_device_may_be_recorded_to():
    recorder = Recorder("/dev/null", RunLine())
    recorder.put(step(0))
    recorder.close()
    assert recorder.dropped == 0


def test_threads_may_put_at_the_same_time_and_lose_nothing(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    threads = [
        threading.Thread(target=lambda at=at: [recorder.put(step(at * 1000 + i)) for i in range(1000)])
        for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert sorted(step.batch for step in load(tmp_path / "run.jsonl").steps) == list(range(4000))


def test_a_closed_recorder_is_not_kept_alive(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.close()
    before = len(write._alive)
    del recorder
    gc.collect()
    assert len(write._alive) < before
