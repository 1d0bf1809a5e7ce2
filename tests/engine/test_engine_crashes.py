"""Workers that die, hang or cannot start."""

import os
import signal
import threading

import pytest
from tests.support.engine_fakes import (
    THREADS_MAY_CONTINUE,
    Copy,
    Numbers,
    check,
    plan,
    shuffled,
    take,
    take_all,
    values,
)

from penstock.engine import scheduler as scheduler_module
from penstock.engine.engine import Engine
from penstock.errors import SampleError, WorkerCrash

both = pytest.mark.parametrize("executor", ["process", "thread"])


def test_a_worker_killed_in_its_task_is_replaced_and_its_samples_are_decoded_again(start, tmp_path):
    source = Numbers(120)
    engine = start(source, Copy({17: "die once", 90: "die once"}, str(tmp_path)), plan())
    batches = shuffled(120, 12)
    check(take_all(engine, source, batches), batches)
    assert engine.scheduler.dispatch.deaths == 2
    assert len(engine.scheduler.dispatch.workers) == 2


def test_a_worker_killed_while_idle_is_replaced(start, eventually):
    source = Numbers(32)
    engine = start(source, Copy(), plan())
    check(take_all(engine, source, [range(32)]), [range(32)])
    os.kill(engine.scheduler.dispatch.workers[0].worker.process.pid, signal.SIGKILL)
    eventually(engine, lambda: engine.scheduler.dispatch.deaths == 1)
    check(take_all(engine, source, [range(32)], first=10), [range(32)])


def test_a_worker_that_dies_while_a_child_of_its_own_holds_its_pipe_is_replaced(start, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler_module, "MAX_WAIT_S", 0.05)
    source = Numbers(32)
    engine = start(source, Copy({9: "die behind a child"}, str(tmp_path)), plan(timeout_s=3600.0))
    engine.begin(source.epoch([range(32)]))
    taken = []
    waiter = threading.Thread(target=lambda: taken.append(take(engine, 0)), daemon=True)
    waiter.start()
    waiter.join(20)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    check(taken, [range(32)])
    assert engine.scheduler.dispatch.deaths == 1


def test_a_worker_that_stops_in_the_middle_of_a_message_does_not_block_the_others(start, capfd):
    source = Numbers(32)
    engine = start(source, Copy({9: "half message"}), plan(timeout_s=0.2))
    ((found, extras),) = take_all(engine, source, [range(32)])
    assert [slot for slot, _, _ in extras] == [9]
    assert [value for slot, value in enumerate(found) if slot != 9] == values(s for s in range(32) if s != 9)
    assert "stuck_in_here" in capfd.readouterr().err


def test_a_sample_that_kills_two_workers_is_bad_and_no_other_is_lost(start):
    source = Numbers(64)
    engine = start(source, Copy({5: "die"}), plan())
    batches = [list(range(first, first + 16)) for first in range(0, 64, 16)]
    (found, extras), *others = take_all(engine, source, batches)
    ((slot, name, error),) = extras
    assert (slot, name) == (5, "!")
    assert isinstance(error, WorkerCrash)
    assert "killed by SIGKILL" in error.reason
    assert [value for slot, value in enumerate(found) if slot != 5] == values([s for s in batches[0] if s != 5])
    check(others, batches[1:])
    assert engine.scheduler.dispatch.deaths == 2
    assert engine.arena.used_bytes == 0, "its block is freed"


def test_all_samples_of_a_batch_that_kill_workers_are_found(start):
    source = Numbers(24)
    killers = {3, 4, 11}
    engine = start(source, Copy(dict.fromkeys(killers, "die")), plan())
    ((found, extras),) = take_all(engine, source, [range(24)])
    assert {slot for slot, _, _ in extras} == killers
    assert [v for s, v in enumerate(found) if s not in killers] == values(s for s in range(24) if s not in killers)


def test_a_stuck_worker_prints_its_stack_and_is_replaced(start, tmp_path, capfd):
    source = Numbers(32)
    engine = start(source, Copy({9: "stuck once"}, str(tmp_path)), plan(timeout_s=0.2))
    check(take_all(engine, source, [range(32)]), [range(32)])
    assert engine.scheduler.dispatch.deaths >= 1
    assert "stuck_in_here" in capfd.readouterr().err


def test_a_stuck_thread_is_an_error_since_nothing_can_end_it(start, capfd):
    source = Numbers(32)
    THREADS_MAY_CONTINUE.clear()
    engine = start(source, Copy({9: "stuck thread"}), plan("thread", timeout_s=0.2))
    engine.begin(source.epoch([range(32)]))
    try:
        with pytest.raises(WorkerCrash, match=r"stuck for too long.*executor='process'"):
            engine.wait_for(0)
    finally:
        THREADS_MAY_CONTINUE.set()
    assert "_stuck_thread" in capfd.readouterr().err


def test_workers_that_cannot_start_are_an_error_and_not_retried_forever(start, capfd):
    source = Numbers(16)
    engine = start(source, Copy({"start": "bad"}), plan())
    engine.begin(source.epoch([range(16)]))
    with pytest.raises(WorkerCrash, match="Workers cannot start"):
        engine.wait_for(0)
    assert "this program cannot start" in capfd.readouterr().err


def test_threads_that_cannot_start_are_an_error_and_leave_nothing_behind(leaves_nothing):
    with pytest.raises(ValueError, match="cannot start"):
        Engine(Numbers(16), Copy({"start": "bad"}), plan("thread"))


@both
@pytest.mark.parametrize("trouble", ["fail", "exit"])
def test_a_task_that_raises_makes_its_samples_bad_and_no_worker_dies(start, executor, trouble):
    source = Numbers(8)
    engine = start(source, Copy({2: trouble}), plan(executor, workers=4))
    ((found, extras),) = take_all(engine, source, [range(8)])
    bad = {slot for slot, _, _ in extras}
    assert 2 in bad
    assert all(name == "!" and isinstance(error, SampleError) for _, name, error in extras)
    good = [sample for sample in range(8) if sample not in bad]
    assert [found[slot] for slot in good] == values(good)
    assert engine.scheduler.dispatch.deaths == 0
