"""The tuner on a real engine: what it counts, and that what it decides is done."""

import threading

import pytest
from tests.support.engine_fakes import Copy, Numbers, plan, take_all

from penstock.engine import autotune as tuner_module
from penstock.engine.autotune import AutotunePolicy, KnobChange


@pytest.fixture
def decide(monkeypatch):
    """Have the controller decide this, once."""

    def prepare(*changes):
        todo = list(changes)
        monkeypatch.setattr(tuner_module, "LOOK_S", 0.0)
        monkeypatch.setattr(AutotunePolicy, "look", lambda self, window, knobs: todo.pop(0) if todo else None)

    return prepare


def test_the_counts_of_a_pass_are_exact(start):
    supply = Numbers(64, per_block=8)
    engine = start(supply, Copy(), plan("thread"))
    take_all(engine, supply, [range(at, at + 8) for at in range(0, 64, 8)])
    stats = engine.stats()
    assert (stats.samples, stats.batches, stats.reads, stats.bytes_read) == (64, 8, 8, 8 * 4096)
    assert stats.decoding_s > 0
    assert stats.read.total_s > 0
    assert stats.decode.total_s > 0


def test_time_without_an_epoch_is_not_counted(start, eventually):
    supply = Numbers(64)
    engine = start(supply, Copy(), plan("thread"))
    take_all(engine, supply, [range(8)])
    eventually(engine, lambda: not engine.conductor.dispatch.under_way)
    before = engine.stats()
    threading.Event().wait(0.05)
    after = engine.stats()
    assert (after.read, after.decode) == (before.read, before.decode)


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_more_workers_and_readers_come_when_they_are_decided(start, eventually, decide, executor):
    decide(
        KnobChange("workers", 2, 3, "busy"),
        KnobChange("readers", 2, 4, "slow"),
        KnobChange("look_ahead", 2, 1, "small"),
    )
    supply = Numbers(640)
    engine = start(supply, Copy(), plan(executor, most_workers=3, most_readers=4))
    engine.begin(supply.epoch([range(at, at + 8) for at in range(0, 640, 8)]))
    eventually(engine, lambda: engine.stats().lookahead == 1)
    stats = engine.stats()
    assert (stats.workers, stats.readers) == (3, 4)
    assert len(engine.conductor.dispatch.seats) == 3
    assert engine.readers.count == 4
    assert stats.changes == ("workers 2 → 3: busy", "readers 2 → 4: slow", "look_ahead 2 → 1: small")


def test_a_change_is_logged_in_one_line(start, eventually, decide, caplog):
    decide(KnobChange("task_s", 0.004, 0.008, "20% went into handing over"))
    supply = Numbers(640)
    engine = start(supply, Copy(), plan("thread"))
    with caplog.at_level("INFO", logger="penstock"):
        engine.begin(supply.epoch([range(at, at + 8) for at in range(0, 640, 8)]))
        eventually(engine, lambda: engine.stats().changes)
    assert "task_s 0.004 → 0.008: 20% went into handing over" in caplog.messages


def test_the_look_ahead_bounds_the_batches_that_are_begun(start, eventually):
    supply = Numbers(640)
    engine = start(supply, Copy(), plan("thread", slabs=40))
    engine.begin(supply.epoch([range(at, at + 8) for at in range(0, 640, 8)]))
    eventually(engine, lambda: engine.stats().ready_batches == 16)
    assert engine.stats().lookahead == 16
    assert engine.stats().batches == 16


def test_passes_that_are_shorter_than_a_window_are_looked_at_together(start, eventually, monkeypatch):
    engine = start(Numbers(64), Copy(), plan("thread"))
    windows = []
    tuner = engine.tuner
    engine.conductor.stop(5)  # from here on it is ours
    monkeypatch.setattr(AutotunePolicy, "look", lambda self, window, knobs: windows.append(window.seconds))
    tuner._before, tuner._seconds, tuner._since = tuner.stats(0.0), 0.0, None
    for begin in (10.0, 20.0, 30.0):
        tuner.look(begin)
        tuner.look(begin + 0.4)
        tuner.pause(begin + 0.4)
        tuner.pause(begin + 5.0)
    assert windows == [pytest.approx(1.2)]
