"""The recorder: which lines reach the file, and that no error reaches the training."""

import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.support.waiting import wait_until

from penstock.errors import RecordingError
from penstock.recording import writer
from penstock.recording.format import EndLine, EpochStartLine, EventLine, LoaderLine, LoaderSetting, RunLine, StepLine
from penstock.recording.reader import load
from penstock.recording.writer import Recorder

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def step(batch, **fields):
    return StepLine(loader=0, batch=batch, at_s=float(batch), wait_s=0.25, step_s=0.75, **fields)


@pytest.fixture
def slow_writer(monkeypatch):
    """Let the thread write only at `close`, so that all lines are still in the queue before."""
    monkeypatch.setattr(writer, "WRITE_EVERY_S", 3600.0)


def test_all_lines_are_in_the_file_in_order_after_close(tmp_path):
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
    loaded = load(path)
    assert loaded.run == RunLine(pid=7, command=("train.py", "--lr", "1"))
    assert loaded.loaders == {0: lines[0]}
    assert loaded.steps == tuple(lines[2:-1])
    assert (loaded.end, loaded.notes) == (lines[-1], ())


def test_the_run_line_is_written_immediately(tmp_path, slow_writer):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine(pid=7))
    assert load(tmp_path / "run.jsonl").run.pid == 7
    recorder.close()


def test_lines_are_written_without_a_close(tmp_path, monkeypatch):
    written = threading.Event()
    real_write_all = writer._write_all

    def write_all(fd, data):
        real_write_all(fd, data)
        if b'"step"' in data:
            written.set()

    monkeypatch.setattr(writer, "_write_all", write_all)
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.put(step(0))
    assert written.wait(30)
    assert load(tmp_path / "run.jsonl").steps == (step(0),)
    recorder.close()


WRITER_WITHOUT_END = """
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
    child = subprocess.Popen([sys.executable, "-c", WRITER_WITHOUT_END, str(path)])
    try:
        wait_until(lambda: path.exists() and path.stat().st_size >= 2000, "2000 bytes of the recording")
        assert child.poll() is None
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    loaded = load(path)
    assert [step.batch for step in loaded.steps] == list(range(len(loaded.steps)))
    assert len(loaded.steps) > 10
    assert loaded.end is None


def test_an_existing_file_is_replaced(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("old\n" * 1000)
    Recorder(path, RunLine(pid=3)).close()
    assert path.read_text() == '{"kind":"run","pid":3}\n'


@pytest.mark.parametrize("path", ["", "no/run.jsonl"], ids=["a folder", "in a folder that does not exist"])
def test_a_path_that_cannot_be_written_is_refused_at_construction_with_advice(tmp_path, path):
    with pytest.raises(RecordingError, match="cannot record to") as caught:
        Recorder(tmp_path / path, RunLine())
    assert "folder that exists" in caught.value.advice


def test_an_invalid_file_name_is_refused():
    with pytest.raises(RecordingError, match="null"):
        Recorder("a\0b", RunLine())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_disk_that_is_full_at_construction_is_refused():
    with pytest.raises(RecordingError, match="No space left"):
        Recorder("/dev/full", RunLine())


def test_a_disk_that_fills_up_ends_the_recording_with_one_warning(tmp_path, monkeypatch, caplog, slow_writer):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())

    def fail(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "_write_all", fail)
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


WRITER_WITH_SIZE_LIMIT = """
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
def test_a_file_size_limit_ends_the_recording_and_not_the_script(tmp_path):
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", WRITER_WITH_SIZE_LIMIT, str(path)]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "stopped: [Errno 27] File too large" in child.stderr
    assert int(child.stdout) == 1000  # all lines of a write are counted as dropped if a part of it fails
    loaded = load(path)
    assert [step.batch for step in loaded.steps] == list(range(len(loaded.steps)))
    assert 0 < len(loaded.steps) < 100
    assert any("cut short at the end" in note for note in loaded.notes)


def test_lines_after_a_write_error_are_counted_as_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "WRITE_EVERY_S", 0.001)
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    monkeypatch.setattr(writer, "_write_all", lambda fd, data: 1 / 0)
    recorder.put(step(0))
    recorder._thread.join(30)
    recorder.put(step(1))
    assert recorder.dropped == 2
    recorder.close()


def test_lines_beyond_the_queue_limit_are_dropped_and_counted_in_the_end_line(tmp_path, monkeypatch, slow_writer):
    monkeypatch.setattr(writer, "QUEUE_LINES_MAX", 10)
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    for batch in range(25):
        recorder.put(step(batch))
    recorder.put(EndLine(at_s=30.0))
    recorder.close()
    loaded = load(tmp_path / "run.jsonl")
    assert [step.batch for step in loaded.steps] == list(range(10))
    assert loaded.end.dropped == recorder.dropped == 15
    assert any(note.startswith("15 lines were lost while recording") for note in loaded.notes)


def test_after_close_nothing_is_written_and_a_second_close_does_nothing(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.close()
    recorder.put(step(0))
    recorder.close()
    assert load(tmp_path / "run.jsonl").steps == ()
    assert recorder.dropped == 0


@needs_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_neither_its_own_lines_nor_the_parents(tmp_path, slow_writer):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.put(step(0))
    child = os.fork()
    if child == 0:
        recorder.put(step(1))
        recorder.close()
        os._exit(len(recorder._queue))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    recorder.put(step(2))
    recorder.close()
    assert [step.batch for step in load(tmp_path / "run.jsonl").steps] == [0, 2]


class RaisingRepr:
    def __repr__(self):
        raise RuntimeError("no")


def test_settings_of_any_type_are_written_as_their_repr_or_counted_as_dropped(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.put(LoaderLine(loader=0, settings={"sampler": LoaderSetting(requested=range(3), in_force={1, 2})}))
    recorder.put(LoaderLine(loader=1, settings={"sampler": LoaderSetting(requested=RaisingRepr())}))
    recorder.put(step(0))
    recorder.put(EndLine(at_s=1.0))
    recorder.close()
    loaded = load(tmp_path / "run.jsonl")
    assert loaded.loaders == {
        0: LoaderLine(loader=0, settings={"sampler": LoaderSetting(requested="range(0, 3)", in_force=[1, 2])})
    }
    assert (loaded.steps, loaded.end.dropped) == ((step(0),), 1)


def test_an_argument_that_is_not_utf8_is_written_with_question_marks(tmp_path):
    Recorder(tmp_path / "run.jsonl", RunLine(command=("train.py", "\udcff.tar"))).close()
    assert load(tmp_path / "run.jsonl").run.command == ("train.py", "?.tar")


def test_nan_and_infinity_are_left_out_when_loaded(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.put(step(0, phases={"forward": float("nan"), "backward": 0.5}))
    recorder.put(StepLine(loader=0, batch=1, at_s=1.0, wait_s=float("nan"), step_s=0.0))
    recorder.put(EventLine(what="gc", at_s=2.0, seconds=float("inf")))
    recorder.close()
    loaded = load(tmp_path / "run.jsonl")
    assert loaded.steps == (step(0, phases={"backward": 0.5}),)
    assert loaded.events == (EventLine(what="gc", at_s=2.0),)
    assert loaded.notes[0] == "2 lines used without the numbers that are null in them (line 2; line 4)"
    assert loaded.notes[1].startswith("1 line skipped: damaged (line 3: ")


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no /dev/null")
def test_a_device_file_can_be_recorded_to():
    recorder = Recorder("/dev/null", RunLine())
    recorder.put(step(0))
    recorder.close()
    assert recorder.dropped == 0


def test_lines_of_concurrent_threads_are_all_written(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    threads = [
        threading.Thread(target=lambda first=first: [recorder.put(step(first + i)) for i in range(1000)])
        for first in range(0, 4000, 1000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert sorted(step.batch for step in load(tmp_path / "run.jsonl").steps) == list(range(4000))


def test_a_closed_recorder_is_garbage_collected(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", RunLine())
    recorder.close()
    before = len(writer._alive)
    del recorder
    gc.collect()
    assert len(writer._alive) < before
