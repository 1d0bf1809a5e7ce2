import logging
import os
import threading

import pytest

from penstock.recording.format import AnyLine, EventLine, StepLine
from penstock.watcher.session import Session
from penstock.watcher.sinks import async_sink
from penstock.watcher.sinks.async_sink import AsyncSink


class CallbackSink(AsyncSink):
    """A sink that calls a function with each line."""

    def __init__(self, on_line):
        super().__init__()
        self.on_line = on_line
        self.finished = 0

    def handle(self, line: AnyLine):
        self.on_line(line)

    def finish(self):
        self.finished += 1


def step(batch=0):
    return StepLine(loader=0, batch=batch, at_s=0.0, wait_s=0.0, step_s=1.0)


def test_a_sink_that_raises_is_disabled_with_one_warning_and_other_sinks_continue(caplog):
    calls, lines = [], []

    def fail(line):
        calls.append(line)
        raise ConnectionError("no route")

    broken, good = CallbackSink(fail), CallbackSink(lines.append)
    session = Session([broken, good])
    with caplog.at_level(logging.WARNING, "penstock"):
        for batch in range(5):
            session.put(step(batch))
        session.close()
    assert (len(calls), len(lines)) == (1, 5)
    assert caplog.messages == ["CallbackSink is switched off: ConnectionError: no route"]
    assert (broken.finished, good.finished) == (1, 1)


def test_lines_after_a_failure_are_ignored():
    calls = []

    def fail(line):
        calls.append(line)
        raise OSError("gone away")

    sink = CallbackSink(fail)
    sink.put(step())
    sink.close()
    sink.put(step())
    assert len(calls) == 1


def test_lines_are_handled_on_the_thread_of_the_sink():
    threads = []
    sink = CallbackSink(lambda _: threads.append(threading.current_thread()))
    sink.put(step())
    sink.close()
    assert threads == [sink._thread]
    assert threads != [threading.current_thread()]


def test_close_returns_though_the_receiver_is_stuck(monkeypatch, caplog):
    monkeypatch.setattr(async_sink, "CLOSE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(async_sink, "POLL_S", 0.0)
    stuck, release = threading.Event(), threading.Event()

    def wait(_):
        stuck.set()
        release.wait()

    sink = CallbackSink(wait)
    sink.put(step())
    assert stuck.wait(30)
    with caplog.at_level(logging.WARNING, "penstock"):
        sink.close()
    release.set()
    assert caplog.messages == ["CallbackSink did not end within 0.01 s: its last lines may be lost"]


def test_lines_beyond_the_queue_limit_are_dropped_and_counted(monkeypatch, caplog):
    monkeypatch.setattr(async_sink, "MAX_QUEUED_LINES", 4)
    monkeypatch.setattr(CallbackSink, "_start", lambda self: None)  # as if the thread never ran
    sink = CallbackSink(lambda _: None)
    for batch in range(7):
        sink.put(step(batch))
    with caplog.at_level(logging.WARNING, "penstock"):
        sink.close()
    assert caplog.messages == ["CallbackSink could not keep up: 3 lines are lost"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_handles_no_lines():
    read, write = os.pipe()
    sink = CallbackSink(lambda line: os.write(write, b"handled"))
    child = os.fork()
    if child == 0:
        try:
            sink.put(step())
            sink.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b""


def test_lines_of_other_kinds_are_not_queued():
    sink = CallbackSink(lambda _: None)
    sink.put(EventLine(what="gc", at_s=0.0))
    assert len(sink._queue) == 0
    assert sink._thread is None
    sink.close()
