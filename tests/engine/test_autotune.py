"""The decisions of the autotuner, in windows and on machines that the test defines, and how they are applied."""

import threading
from dataclasses import replace

import pytest
from tests.support.engine_fakes import Copy, Numbers, plan, take_all

from penstock.core.hops import Hop
from penstock.engine.autotune import (
    MAX_TASK_S,
    REST,
    AutotunePolicy,
    Knob,
    KnobChange,
    Knobs,
    TuningWindow,
)

# -- decisions ---------------------------------------------------------------------------------------------------------

KNOBS = Knobs(readers=Knob(4, 1, 32), workers=Knob(4, 4, 16), lookahead=Knob(4, 1, 7), task_s=0.004)


def window(read=(0.5, 0.0, 0.5), decode=(0.5, 0.0, 0.5), waited=0.3, mb_per_s=100.0, decoding=1.0, samples=1000):
    """A window of one second; `read` and `decode` are the fractions busy, starved and blocked."""
    return TuningWindow(
        seconds=1.0,
        waited_s=waited,
        bytes_read=int(mb_per_s * 1e6),
        read=Hop("read", *read),
        decode=Hop("decode", *decode),
        decoding_s=decode[0] * decoding,
        tasks=200,
        samples=samples,
    )


READING = {"read": (1.0, 0.0, 0.0), "decode": (0.3, 0.7, 0.0)}
DECODING = {"read": (0.2, 0.0, 0.8), "decode": (0.98, 0.0, 0.02)}
STRAGGLER = {"read": (0.1, 0.0, 0.9), "decode": (0.5, 0.0, 0.5)}


@pytest.mark.parametrize("hops", [READING, DECODING, STRAGGLER])
def test_nothing_is_changed_while_the_training_loop_does_not_wait(hops):
    assert AutotunePolicy().decide(window(**hops, waited=0.01), KNOBS) is None


def test_slow_reading_gets_twice_the_reads_in_flight():
    change = AutotunePolicy().decide(window(**READING), KNOBS)
    assert (change.name, change.old, change.new) == ("readers", 4, 8)
    assert str(change) == (
        "readers 4 → 8: workers starved 70% of the time with every read in flight; trying for more than 100 MB/s"
    )


def test_slow_decoding_gets_twice_the_workers():
    change = AutotunePolicy().decide(window(**DECODING), KNOBS)
    assert (change.name, change.old, change.new) == ("workers", 4, 8)
    assert "busy 98% of the time while the training loop waited 30%" in change.reason


def test_stragglers_get_more_lookahead():
    change = AutotunePolicy().decide(window(**STRAGGLER), KNOBS)
    assert (change.name, change.old, change.new) == ("lookahead", 4, 6)


def test_the_lookahead_grows_as_long_as_it_helps_and_after_its_memory_is_created():
    knobs = replace(KNOBS, lookahead=Knob(4, 1, 60))
    policy, values = AutotunePolicy(), []
    for samples in (1000, 500, 1100, 500, 1110, 1200):
        change = policy.decide(window(**STRAGGLER, samples=samples), knobs)
        values.append(None if change is None else change.new)
        knobs = knobs if change is None else knobs.changed(change)
    assert values == [6, None, 9, None, None, None]
    decisions = [policy.decide(window(**STRAGGLER, samples=1200), knobs) for _ in range(REST)]
    assert [change.new for change in decisions if change is not None] == [13]


def test_a_rate_of_long_ago_is_not_compared_with_the_rate_after_more_lookahead():
    knobs = replace(KNOBS, lookahead=Knob(4, 1, 60))
    policy = AutotunePolicy()
    assert policy.decide(window(**STRAGGLER, samples=1000), knobs).new == 6
    for _ in range(3):
        assert policy.decide(window(waited=0.0, samples=1000), knobs) is None
    assert policy.decide(window(**STRAGGLER, samples=400), knobs).new == 6


def test_workers_that_are_busy_but_often_blocked_get_more_lookahead():
    knobs = replace(KNOBS, workers=Knob(16, 4, 16))
    hops = {"read": (0.0, 0.0, 1.0), "decode": (0.94, 0.0, 0.06)}
    assert AutotunePolicy().decide(window(**hops), knobs).name == "lookahead"
    assert AutotunePolicy().decide(window(**{**hops, "decode": (0.97, 0.0, 0.03)}), knobs) is None


def test_tasks_become_longer_if_sending_them_costs_much():
    change = AutotunePolicy().decide(window(**DECODING, decoding=0.7), KNOBS)
    assert (change.name, change.old, change.new) == ("task_s", 0.004, 0.008)
    assert "30% went into sending tasks and results" in change.reason
    longest = replace(KNOBS, task_s=MAX_TASK_S)
    assert AutotunePolicy().decide(window(**DECODING, decoding=0.7), longest).name == "workers"


@pytest.mark.parametrize("hops", [READING, DECODING, STRAGGLER])
def test_a_setting_of_the_user_is_never_changed(hops):
    fixed = Knobs(Knob(4, 4, 4), Knob(4, 4, 4), Knob(4, 4, 4), MAX_TASK_S)
    policy = AutotunePolicy()
    assert [policy.decide(window(**hops), fixed) for _ in range(5)] == [None] * 5


def test_a_knob_stops_at_the_end_of_its_range():
    knobs = replace(KNOBS, workers=Knob(15, 4, 16))
    assert AutotunePolicy().decide(window(**DECODING), knobs).new == 16
    assert AutotunePolicy().decide(window(**DECODING), replace(KNOBS, workers=Knob(16, 4, 16))) is None


class Machine:
    """Storage whose bandwidth depends on the reads in flight, and workers that could decode far more."""

    def __init__(self, mb_per_s, knobs=KNOBS):
        self.mb_per_s, self.knobs, self.policy, self.log = mb_per_s, knobs, AutotunePolicy(), []

    def run(self, windows):
        for _ in range(windows):
            mb_per_s = self.mb_per_s(self.knobs.readers.value)
            change = self.policy.decide(window(**READING, mb_per_s=mb_per_s), self.knobs)
            if change is not None:
                self.knobs = self.knobs.changed(change)
                self.log.append(str(change))
        return self.knobs.readers.value


def test_storage_that_gains_by_many_reads_gets_them():
    assert Machine(lambda reads: 50.0 * reads).run(20) == 32


def test_storage_that_is_full_at_eight_reads_stays_at_eight():
    machine = Machine(lambda reads: 50.0 * min(reads, 8) - reads)
    assert machine.run(20) == 8
    assert "more is no help" in machine.log[-1] or "too few" in machine.log[-1]


def test_a_disk_that_thrashes_ends_with_one_read_at_a_time():
    assert Machine(lambda reads: 150.0 / reads).run(20) == 1


def test_where_the_number_of_reads_makes_no_difference_fewer_are_kept():
    machine = Machine(lambda reads: 100.0)
    assert machine.run(REST) == 2
    assert len(machine.log) == 2


def test_a_knob_that_did_not_help_is_tried_again_after_a_rest():
    machine = Machine(lambda reads: 100.0)
    machine.run(10)
    changes = len(machine.log)
    machine.mb_per_s = lambda reads: 100.0 * reads
    machine.run(REST + 10)
    assert machine.knobs.readers.value == 32
    assert len(machine.log) > changes


def test_each_change_is_one_line_with_a_reason():
    machine = Machine(lambda reads: 150.0 / reads)
    machine.run(20)
    assert all("\n" not in line and ": " in line for line in machine.log)


# -- applied by a running engine ---------------------------------------------------------------------------------------


@pytest.fixture
def decide(monkeypatch):
    """Let the policy decide on these changes, one in each window, without a wait between windows."""

    def decide(*changes):
        rest = list(changes)
        monkeypatch.setattr("penstock.engine.autotune.WINDOW_S", 0.0)
        monkeypatch.setattr(AutotunePolicy, "decide", lambda self, window, knobs: rest.pop(0) if rest else None)

    return decide


def test_the_counters_of_an_epoch_are_exact(start):
    source = Numbers(64, per_block=8)
    engine = start(source, Copy(), plan("thread"))
    take_all(engine, source, [range(first, first + 8) for first in range(0, 64, 8)])
    stats = engine.stats()
    assert (stats.samples, stats.batches, stats.reads, stats.bytes_read) == (64, 8, 8, 8 * 4096)
    assert stats.decoding_s > 0
    assert stats.read.total_s > 0
    assert stats.decode.total_s > 0


def test_time_without_an_epoch_is_not_counted(start, eventually):
    source = Numbers(64)
    engine = start(source, Copy(), plan("thread"))
    take_all(engine, source, [range(8)])
    eventually(engine, lambda: not engine.scheduler.dispatch.in_progress)
    before = engine.stats()
    threading.Event().wait(0.05)
    after = engine.stats()
    assert (after.read, after.decode) == (before.read, before.decode)


def many_batches(source):
    return source.epoch([range(first, first + 8) for first in range(0, 640, 8)])


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_decided_workers_and_readers_are_added(start, eventually, decide, executor):
    decide(
        KnobChange("workers", 2, 3, "busy"),
        KnobChange("readers", 2, 4, "slow"),
        KnobChange("lookahead", 2, 1, "small"),
    )
    source = Numbers(640)
    engine = start(source, Copy(), plan(executor, max_workers=3, max_readers=4))
    engine.begin(many_batches(source))
    eventually(engine, lambda: engine.stats().lookahead == 1)
    stats = engine.stats()
    assert (stats.workers, stats.readers) == (3, 4)
    assert len(engine.scheduler.dispatch.workers) == 3
    assert engine.readers.count == 4
    assert stats.changes == ("workers 2 → 3: busy", "readers 2 → 4: slow", "lookahead 2 → 1: small")


def test_a_change_is_logged_in_one_line(start, eventually, decide, caplog):
    decide(KnobChange("task_s", 0.004, 0.008, "20% went into sending tasks and results"))
    source = Numbers(640)
    engine = start(source, Copy(), plan("thread"))
    with caplog.at_level("INFO", logger="penstock"):
        engine.begin(many_batches(source))
        eventually(engine, lambda: engine.stats().changes)
    assert "task_s 0.004 → 0.008: 20% went into sending tasks and results" in caplog.messages


def test_the_lookahead_limits_the_batches_that_are_begun(start, eventually):
    source = Numbers(640)
    engine = start(source, Copy(), plan("thread", slabs=40))
    engine.begin(many_batches(source))
    eventually(engine, lambda: engine.stats().ready_batches == 16)
    assert engine.stats().lookahead == 16
    assert engine.stats().batches == 16


def test_epochs_that_are_shorter_than_a_window_are_measured_together(start, monkeypatch):
    engine = start(Numbers(64), Copy(), plan("thread"))
    windows = []
    autotuner = engine.autotuner
    engine.scheduler.stop(5)  # so that only this test calls the autotuner
    monkeypatch.setattr(AutotunePolicy, "decide", lambda self, window, knobs: windows.append(window.seconds))
    autotuner._window_start, autotuner._window_s, autotuner._since = autotuner.stats(0.0), 0.0, None
    for begin in (10.0, 20.0, 30.0):
        autotuner.tune(begin)
        autotuner.tune(begin + 0.4)
        autotuner.pause(begin + 0.4)
        autotuner.pause(begin + 5.0)
    assert windows == [pytest.approx(1.2)]
