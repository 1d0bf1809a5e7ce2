import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.support.engine_fakes import THREADS_MAY_GO, Copy, Numbers, open_files, plan, take, take_all

from penstock.core.contracts import EpochRequest
from penstock.engine import output_queue as shelf_module
from penstock.engine import scheduler as conductor_module
from penstock.engine.engine import Engine
from penstock.engine.ipc import Listener
from penstock.engine.scheduler import AT_ONCE
from penstock.errors import PenstockError, SampleError, SettingError, StorageError, WorkerCrash

both = pytest.mark.parametrize("executor", ["process", "thread"])


def shuffled(samples, batch_size, seed=0):
    order = list(range(samples))
    random.Random(seed).shuffle(order)
    return [order[at : at + batch_size] for at in range(0, samples, batch_size)]


def values(samples):
    return [7 * sample for sample in samples]


@pytest.fixture
def never_oversleeps(monkeypatch):
    """The conductor is always woken by what it waits for, never by the clock."""
    overslept = []

    class Watched(Listener):
        def wait(self, descriptors, timeout_s):
            ready = super().wait(descriptors, 20 if timeout_s else 0)
            if not timeout_s:
                return ready
            if not ready:
                overslept.append(timeout_s)
            return ready

    monkeypatch.setattr(conductor_module, "Listener", Watched)
    yield
    assert overslept == []


def check(taken, batches):
    """Every slot has its own sample's number, and nothing was said about any of them."""
    assert [got for got, _ in taken] == [values(samples) for samples in batches]
    assert [extras for _, extras in taken] == [[] for _ in batches]


# -- the plain way ---------------------------------------------------------------------------------------------------


@both
def test_every_slot_of_every_batch_is_filled_in_order(never_oversleeps, start, executor):
    supply = Numbers(500)
    engine = start(supply, Copy(), plan(executor))
    batches = shuffled(500, 16)
    check(take_all(engine, supply, batches), batches)
    assert engine.stats().samples == 500
    assert engine.stats().batches == len(batches)
    assert sorted(supply.filled) == list(range(supply.blocks)), "each block is read once"
    assert engine.arena.used == 0


@both
def test_epochs_follow_one_another_on_the_same_workers(start, executor):
    supply = Numbers(64)
    engine = start(supply, Copy(), plan(executor))
    for epoch in range(5):
        batches = shuffled(64, 10, seed=epoch)
        check(take_all(engine, supply, batches, first=100 * epoch), batches)
    assert engine.conductor.dispatch.deaths == 0


@both
def test_samples_without_a_block_need_no_reader(start, executor):
    supply = Numbers(40, blockless=True)
    engine = start(supply, Copy(from_arena=False), plan(executor))
    batches = shuffled(40, 8)
    check(take_all(engine, supply, batches), batches)
    assert supply.filled == []


def test_an_empty_batch_is_complete_at_once(start):
    supply = Numbers(8)
    engine = start(supply, Copy(), plan("thread"))
    batches = [[], [1, 2], [], [3]]
    check(take_all(engine, supply, batches), batches)


def test_an_arena_smaller_than_the_working_set_still_finishes(never_oversleeps, start):
    supply = Numbers(256, per_block=8)  # 32 blocks of a page
    engine = start(supply, Copy(), plan("thread", arena_bytes=4 * 4096))
    batches = shuffled(256, 32)
    check(take_all(engine, supply, batches), batches)
    rereads = engine.conductor.residency.rereads
    assert rereads > 0
    assert len(supply.filled) == supply.blocks + rereads


def test_large_answers_do_not_lock_worker_and_conductor(start):
    supply = Numbers(4000, per_block=500)
    engine = start(supply, Copy(dict.fromkeys(range(0, 4000, 100), "large")), plan(workers=1, slab_bytes=32768))
    ((got, extras),) = take_all(engine, supply, [range(4000)])
    assert got == values(range(4000))
    assert len(extras) == 40


def test_more_than_a_thousand_open_files_are_no_obstacle(start):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        supply = Numbers(16)
        engine = start(supply, Copy(), plan())
        check(take_all(engine, supply, [range(16)]), [range(16)])
        engine.close()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- workers that die ------------------------------------------------------------------------------------------------


def test_a_worker_killed_in_its_task_is_replaced_and_its_samples_are_done_again(start, tmp_path):
    supply = Numbers(120)
    engine = start(supply, Copy({17: "die once", 90: "die once"}, str(tmp_path)), plan())
    batches = shuffled(120, 12)
    check(take_all(engine, supply, batches), batches)
    assert engine.conductor.dispatch.deaths == 2
    assert len(engine.conductor.dispatch.seats) == 2


def test_a_worker_killed_while_idle_is_replaced(start, eventually):
    supply = Numbers(32)
    engine = start(supply, Copy(), plan())
    check(take_all(engine, supply, [range(32)]), [range(32)])
    os.kill(engine.conductor.dispatch.seats[0].worker.process.pid, signal.SIGKILL)
    eventually(engine, lambda: engine.conductor.dispatch.deaths == 1)
    check(take_all(engine, supply, [range(32)], first=10), [range(32)])


def test_a_worker_that_dies_while_a_child_of_its_own_holds_its_pipe_is_replaced(start, tmp_path, monkeypatch):
    monkeypatch.setattr(conductor_module, "LONGEST_WAIT_S", 0.05)
    supply = Numbers(32)
    engine = start(supply, Copy({9: "die behind a child"}, str(tmp_path)), plan(deadline_s=3600.0))
    engine.begin(supply.epoch([range(32)]))
    taken = []
    waiter = threading.Thread(target=lambda: taken.append(take(engine, 0)), daemon=True)
    waiter.start()
    waiter.join(20)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    check(taken, [range(32)])
    assert engine.conductor.dispatch.deaths == 1


def test_a_worker_that_stops_in_the_middle_of_an_answer_holds_nobody_else_up(start, capfd):
    supply = Numbers(32)
    engine = start(supply, Copy({9: "half"}), plan(deadline_s=0.2))
    ((got, extras),) = take_all(engine, supply, [range(32)])
    assert [slot for slot, _, _ in extras] == [9]
    assert [value for slot, value in enumerate(got) if slot != 9] == values(s for s in range(32) if s != 9)
    assert "stuck_in_here" in capfd.readouterr().err


def test_a_sample_that_kills_twice_is_bad_and_costs_no_other_sample(start):
    supply = Numbers(64)
    engine = start(supply, Copy({5: "die"}), plan())
    batches = [list(range(at, at + 16)) for at in range(0, 64, 16)]
    (got, extras), *others = take_all(engine, supply, batches)
    ((slot, name, error),) = extras
    assert (slot, name) == (5, "!")
    assert isinstance(error, WorkerCrash)
    assert "killed by SIGKILL" in error.reason
    assert [value for slot, value in enumerate(got) if slot != 5] == values([s for s in batches[0] if s != 5])
    check(others, batches[1:])
    assert engine.conductor.dispatch.deaths == 2
    assert engine.arena.used == 0, "its block is not kept for ever"


def test_many_killers_in_one_batch_are_all_found(start):
    supply = Numbers(24)
    killers = {3, 4, 11}
    engine = start(supply, Copy(dict.fromkeys(killers, "die")), plan())
    ((got, extras),) = take_all(engine, supply, [range(24)])
    assert {slot for slot, _, _ in extras} == killers
    assert [v for s, v in enumerate(got) if s not in killers] == values(s for s in range(24) if s not in killers)


def test_a_stuck_worker_prints_its_stack_and_is_replaced(start, tmp_path, capfd):
    supply = Numbers(32)
    engine = start(supply, Copy({9: "stuck once"}, str(tmp_path)), plan(deadline_s=0.2))
    check(take_all(engine, supply, [range(32)]), [range(32)])
    assert engine.conductor.dispatch.deaths >= 1
    assert "stuck_in_here" in capfd.readouterr().err


def test_a_stuck_thread_is_an_error_since_nothing_can_end_it(start, capfd):
    supply = Numbers(32)
    THREADS_MAY_GO.clear()
    engine = start(supply, Copy({9: "stuck thread"}), plan("thread", deadline_s=0.2))
    engine.begin(supply.epoch([range(32)]))
    try:
        with pytest.raises(WorkerCrash, match=r"stuck for too long.*executor='process'"):
            engine.wait_for(0)
    finally:
        THREADS_MAY_GO.set()
    assert "_stuck_thread" in capfd.readouterr().err


def test_workers_that_cannot_start_are_an_error_and_not_a_loop(start, capfd):
    supply = Numbers(16)
    engine = start(supply, Copy({"start": "bad"}), plan())
    engine.begin(supply.epoch([range(16)]))
    with pytest.raises(WorkerCrash, match="Workers cannot start"):
        engine.wait_for(0)
    assert "this work cannot start" in capfd.readouterr().err


def test_threads_that_cannot_start_are_an_error_and_leave_nothing(leaves_nothing):
    with pytest.raises(ValueError, match="cannot start"):
        Engine(Numbers(16), Copy({"start": "bad"}), plan("thread"))


@both
@pytest.mark.parametrize("trouble", ["fail", "exit"])
def test_a_task_that_raises_makes_its_samples_bad_and_no_worker_dies(start, executor, trouble):
    supply = Numbers(8)
    engine = start(supply, Copy({2: trouble}), plan(executor, workers=4))
    ((got, extras),) = take_all(engine, supply, [range(8)])
    bad = {slot for slot, _, _ in extras}
    assert 2 in bad
    assert all(name == "!" and isinstance(error, SampleError) for _, name, error in extras)
    good = [sample for sample in range(8) if sample not in bad]
    assert [got[slot] for slot in good] == values(good)
    assert engine.conductor.dispatch.deaths == 0


# -- failures reach the consumer -------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("error", [StorageError("the disk is gone"), SystemExit(3)])
def test_a_readers_error_reaches_the_consumer(start, executor, error):
    supply = Numbers(64)
    supply.error_at[3] = error
    engine = start(supply, Copy(), plan(executor))
    engine.begin(supply.epoch([range(24), range(24, 48)]))
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            engine.wait_for(1)
        assert caught.value is error


def test_somebody_begins_with_the_first_batch_of_a_pass_before_all_are_planned(start, monkeypatch):
    supply = Numbers(640, blockless=True)
    engine = start(supply, Copy(from_arena=False), plan("thread"))
    take_all(engine, supply, [range(8)])
    did = []
    for name in ("blocks_of", "task_rows"):
        method = getattr(supply, name)
        monkeypatch.setattr(supply, name, lambda *given, name=name, method=method: did.append(name) or method(*given))
    take_all(engine, supply, [range(at, at + 8) for at in range(0, 480, 8)], first=1)
    assert did.index("task_rows") == AT_ONCE
    assert did.count("blocks_of") == 60


@pytest.mark.parametrize("method", ["blocks_of", "block_bytes", "task_rows"])
def test_a_supply_that_raises_is_heard(start, method, monkeypatch):
    supply = Numbers(64)

    def broken(*_):
        raise RuntimeError(f"{method} is broken")

    epoch = supply.epoch([range(24)])
    monkeypatch.setattr(supply, method, broken)
    engine = start(supply, Copy(), plan("thread"))
    engine.begin(epoch)
    with pytest.raises(RuntimeError, match=method):
        engine.wait_for(0)


def test_an_order_that_raises_is_heard(start):
    supply = Numbers(64)
    epoch = supply.epoch([range(24)])

    def requests():
        yield from epoch.batches
        raise RuntimeError("the order is broken")

    engine = start(supply, Copy(), plan("thread"))
    engine.begin(EpochRequest(requests(), epoch.block_uses))
    with pytest.raises(RuntimeError, match="the order is broken"):
        engine.wait_for(1)


def test_a_block_larger_than_the_arena_is_heard(start):
    supply = Numbers(64, block_size=1 << 20)
    engine = start(supply, Copy(), plan("thread", arena_bytes=1 << 16))
    engine.begin(supply.epoch([range(24)]))
    with pytest.raises(SettingError, match="does not fit into an arena"):
        engine.wait_for(0)


def test_a_consumer_that_keeps_every_slab_is_told_instead_of_waiting_for_ever(start, monkeypatch, eventually):
    monkeypatch.setattr(shelf_module, "HOARD_S", 0.0)
    monkeypatch.setattr(shelf_module, "LONGEST_WAIT_S", 0.01)
    supply = Numbers(64)
    engine = start(supply, Copy(), plan("thread", slabs=3))
    engine.begin(supply.epoch(shuffled(64, 8)))
    kept = [engine.wait_for(number) for number in range(3)]
    with pytest.raises(PenstockError, match=r"all 3 batches.*clone"):
        engine.wait_for(3)
    for batch in kept:
        engine.conductor.release(batch.slab)
    eventually(engine, lambda: len(engine.conductor.shelf))
    assert take(engine, 3)[0] == values(shuffled(64, 8)[3])


def test_a_slab_that_comes_back_wakes_nobody_while_enough_batches_are_ready(start, eventually, monkeypatch):
    supply = Numbers(64)
    engine = start(supply, Copy(), plan("thread", slabs=5))
    engine.begin(supply.epoch(shuffled(64, 8)))
    eventually(engine, lambda: len(engine.conductor.shelf) == 4)
    rings, ring = [], engine.conductor._ring
    monkeypatch.setattr(engine.conductor, "_ring", lambda: (rings.append(len(engine.conductor.shelf)), ring()))
    take(engine, 0)
    assert rings == []
    take(engine, 1)
    assert rings[0] == 2
    eventually(engine, lambda: len(engine.conductor.shelf) == 4)


def test_a_loop_that_comes_for_the_last_ready_batch_reminds_of_the_slabs_it_gave_back(start, eventually, monkeypatch):
    supply = Numbers(64)
    engine = start(supply, Copy(), plan("thread", slabs=3))
    engine.begin(supply.epoch(shuffled(64, 8)))
    first = engine.wait_for(0)
    eventually(engine, lambda: len(engine.conductor.shelf) == 2)
    monkeypatch.setattr(conductor_module, "LONGEST_WAIT_S", 3600.0)  # from its next wait on
    engine.conductor.post(lambda: None)
    eventually(engine, lambda: not engine.conductor._events)
    monkeypatch.setattr(shelf_module, "HOARD_S", 2.0)
    engine.conductor.release(first.slab)
    kept = [engine.wait_for(1), engine.wait_for(2)]
    assert take(engine, 3)[0] == values(shuffled(64, 8)[3])
    for batch in kept:
        engine.conductor.release(batch.slab)


def test_waiting_for_a_batch_of_a_pass_that_was_given_up_is_an_error(start):
    supply = Numbers(64)
    engine = start(supply, Copy(), plan("thread"))
    engine.begin(supply.epoch(shuffled(64, 8)))
    take(engine, 0)
    check(take_all(engine, supply, [range(8)], first=8), [range(8)])
    with pytest.raises(PenstockError, match="another pass has begun"):
        engine.wait_for(1)


def test_a_consumer_that_waits_when_the_engine_is_closed_is_told(start):
    supply = Numbers(64)
    supply.gate = threading.Event()
    engine = start(supply, Copy(), plan("thread"))
    engine.begin(supply.epoch([range(8)]))
    caught = []

    def wait():
        try:
            engine.wait_for(0)
        except PenstockError as error:
            caught.append(error.reason)

    waiter = threading.Thread(target=wait)
    waiter.start()
    closer = threading.Thread(target=engine.close)
    closer.start()
    waiter.join(30)
    supply.gate.set()
    closer.join(30)
    assert caught == ["the loader has been closed"]


def test_a_ring_that_an_interrupt_swallowed_keeps_nobody_waiting(start, monkeypatch, eventually):
    monkeypatch.setattr(conductor_module, "LONGEST_WAIT_S", 0.05)
    engine = start(Numbers(8), Copy(), plan("thread"))
    engine.conductor._bell._rung = True  # it came between the note of a ring and its sound
    eventually(engine, lambda: not engine.conductor._bell._rung)


# -- epochs that are given up ----------------------------------------------------------------------------------------


@both
def test_epochs_given_up_in_the_middle_twenty_times(never_oversleeps, start, executor, eventually):
    supply = Numbers(256)
    engine = start(supply, Copy(), plan(executor, arena_bytes=8 * 4096))
    for epoch in range(20):
        batches = shuffled(256, 16, seed=epoch)
        engine.begin(supply.epoch(batches, 100 * epoch))
        for number in range(epoch % 4):
            assert take(engine, 100 * epoch + number)[0] == values(batches[number])
    batches = shuffled(256, 16, seed=99)
    check(take_all(engine, supply, batches, first=10_000), batches)
    eventually(engine, lambda: sorted(engine.conductor._free_slabs) == [0, 1, 2])
    eventually(engine, lambda: engine.arena.used == 0 and engine.conductor.dispatch.under_way == 0)


def test_a_worker_that_dies_with_samples_of_an_epoch_given_up_loses_no_slab(start, tmp_path, eventually):
    supply = Numbers(256)
    engine = start(supply, Copy(dict.fromkeys(range(0, 256, 8), "die once"), str(tmp_path)), plan())
    for epoch in range(6):
        engine.begin(supply.epoch(shuffled(256, 16, seed=epoch), 100 * epoch))
        take(engine, 100 * epoch)
    check(take_all(engine, supply, [range(1, 8)], first=10_000), [range(1, 8)])
    eventually(engine, lambda: sorted(engine.conductor._free_slabs) == [0, 1, 2])
    eventually(engine, lambda: engine.arena.used == 0)


# -- the end ---------------------------------------------------------------------------------------------------------


@both
def test_close_while_everything_is_busy_leaves_nothing(start, executor):
    supply = Numbers(4096)
    for _ in range(3):
        engine = start(supply, Copy(), plan(executor))
        engine.begin(supply.epoch(shuffled(4096, 64)))
        take(engine, 0)
        engine.close()
        engine.close()


def test_close_does_not_wait_for_a_process_that_is_stuck(start):
    supply = Numbers(64)
    engine = start(supply, Copy(dict.fromkeys(range(64), "stuck")), plan())
    engine.begin(supply.epoch([range(64)]))
    engine.close()


def test_an_interrupt_while_the_engine_closes_leaves_nothing(start, monkeypatch):
    engine, held = start(Numbers(8), Copy(), plan()), threading.Event()
    engine.conductor.post(held.wait)  # or its thread might end before anybody waits for it

    def interrupted(timeout_s):
        held.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.conductor._thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    monkeypatch.undo()
    engine.conductor._thread.join(30)
    engine.conductor._bell = None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_process_that_was_forked_nobody_waits_and_closing_touches_nothing(start):
    supply = Numbers(64)
    engine = start(supply, Copy(), plan())
    engine.begin(supply.epoch([range(8), range(8)]))
    assert take(engine, 0)[0] == values(range(8))
    with engine.conductor.shelf._changed:  # as a thread may have it that a fork does not take along
        child = os.fork()
        if child == 0:
            in_another_thread(lambda: forked(engine))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert take(engine, 1)[0] == values(range(8))


def in_another_thread(deed):
    """Which does not have the locks of the one that forked."""
    signal.alarm(30)
    threading.Thread(target=deed).start()
    time.sleep(60)


def forked(engine):
    try:
        engine.wait_for(1)
    except PenstockError as error:
        engine.close()
        os._exit("forked" not in error.reason)
    os._exit(2)


def test_close_before_the_workers_are_up(start):
    start(Numbers(8), Copy(), plan(workers=4)).close()


def test_close_does_not_wait_for_ever_for_a_thread_or_a_read_that_is_stuck(start, monkeypatch):
    monkeypatch.setattr("penstock.engine.engine.STOP_S", 0.1)
    THREADS_MAY_GO.clear()
    others = set(threading.enumerate())
    supply = Numbers(64)
    engine = start(supply, Copy(dict.fromkeys(range(64), "stuck thread")), plan("thread"))
    supply.gate = threading.Semaphore(1)
    supply.gate.wait = supply.gate.acquire
    engine.begin(supply.epoch([range(64)]))
    own = set(threading.enumerate()) - others
    assert own
    engine.close()
    THREADS_MAY_GO.set()
    supply.gate.release(1000)
    for thread in own:
        thread.join(30)
        assert not thread.is_alive()


def test_a_batch_can_be_looked_at_after_close(start):
    supply = Numbers(64)
    engine = start(supply, Copy(), plan("thread"))
    engine.begin(supply.epoch([range(8)]))
    batch = engine.wait_for(0)
    array = np.ndarray((8,), np.int64, engine.slabs.view, batch.slab * 4096)
    engine.close()
    assert array.tolist() == values(range(8))
    engine.conductor.release(batch.slab)


def test_what_comes_after_close_touches_no_descriptor_of_others(start):
    supply = Numbers(64)
    engine = start(supply, Copy(), plan("thread"))
    engine.close()
    pairs = [os.pipe() for _ in range(16)]  # these get the numbers that the engine had
    for slab in range(3):
        engine.conductor.release(slab)
    for read, write in pairs:
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
        os.close(read)
        os.close(write)


def test_a_failed_engine_is_closed_even_while_its_error_is_kept(start):
    before = open_files()
    engine = start(Numbers(64), Copy({"start": "bad"}), plan())
    with pytest.raises(WorkerCrash) as caught:
        engine.wait_for(0)
    engine.close()
    assert caught.value.__traceback__ is not None
    assert open_files() == before


def test_an_engine_can_be_closed_by_the_garbage_collector_wherever_that_runs(leaves_nothing):
    supply = Numbers(64)
    engine = Engine(supply, Copy(), plan("thread"))
    closed = threading.Event()
    engine.conductor.post(lambda close=engine.close: (close(), closed.set()))
    assert closed.wait(30)
    engine.conductor._thread.join(30)
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {here!r})
from tests.support.engine_fakes import Copy, Numbers, plan, take
from penstock.engine.engine import Engine
supply = Numbers(64)
engine = Engine(supply, Copy(), plan({executor!r}))
engine.begin(supply.epoch([range(8)] * 8))
take(engine, 0)
print(*[seat.worker.process.pid for seat in engine.conductor.dispatch.seats if hasattr(seat.worker, "process")])
"""


@both
def test_a_program_that_ends_without_closing_ends(executor):
    program = SCRIPT.format(here=str(Path(__file__).parents[2]), executor=executor)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
