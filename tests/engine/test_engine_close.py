"""Closing an engine, in whatever state it is."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.support.engine_fakes import (
    THREADS_MAY_CONTINUE,
    Copy,
    Numbers,
    open_files,
    plan,
    shuffled,
    take,
    values,
)

from penstock.engine.engine import Engine
from penstock.errors import PenstockError, WorkerCrash

both = pytest.mark.parametrize("executor", ["process", "thread"])


@both
def test_closing_while_all_is_busy_leaves_nothing(start, executor):
    source = Numbers(4096)
    for _ in range(3):
        engine = start(source, Copy(), plan(executor))
        engine.begin(source.epoch(shuffled(4096, 64)))
        take(engine, 0)
        engine.close()
        engine.close()


def test_closing_does_not_wait_for_a_stuck_process(start):
    source = Numbers(64)
    engine = start(source, Copy(dict.fromkeys(range(64), "stuck")), plan())
    engine.begin(source.epoch([range(64)]))
    engine.close()


def test_an_interrupt_during_closing_leaves_nothing(start, monkeypatch):
    engine, held = start(Numbers(8), Copy(), plan()), threading.Event()
    engine.scheduler.post(held.wait)  # otherwise its thread might end before it is joined

    def interrupted(timeout_s):
        held.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.scheduler._thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    monkeypatch.undo()
    engine.scheduler._thread.join(30)
    engine.scheduler._wakeup = None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_process_waiting_is_an_error_and_closing_does_nothing(start):
    source = Numbers(64)
    engine = start(source, Copy(), plan())
    engine.begin(source.epoch([range(8), range(8)]))
    assert take(engine, 0)[0] == values(range(8))
    with engine.scheduler.output_queue._changed:  # as if another thread held it, which a fork does not copy
        child = os.fork()
        if child == 0:
            in_another_thread(lambda: forked(engine))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert take(engine, 1)[0] == values(range(8))


def in_another_thread(action):
    """Run the action in a thread that does not hold the locks of the forking one."""
    signal.alarm(30)
    threading.Thread(target=action).start()
    time.sleep(60)


def forked(engine):
    try:
        engine.wait_for(1)
    except PenstockError as error:
        engine.close()
        os._exit("forked" not in error.reason)
    os._exit(2)


def test_closing_before_the_workers_have_started(start):
    start(Numbers(8), Copy(), plan(workers=4)).close()


def test_closing_waits_only_for_a_time_for_a_stuck_thread_or_read(start, monkeypatch):
    monkeypatch.setattr("penstock.engine.engine.STOP_TIMEOUT_S", 0.1)
    THREADS_MAY_CONTINUE.clear()
    others = set(threading.enumerate())
    source = Numbers(64)
    engine = start(source, Copy(dict.fromkeys(range(64), "stuck thread")), plan("thread"))
    source.gate = threading.Semaphore(1)
    source.gate.wait = source.gate.acquire
    engine.begin(source.epoch([range(64)]))
    own = set(threading.enumerate()) - others
    assert own
    engine.close()
    THREADS_MAY_CONTINUE.set()
    source.gate.release(1000)
    for thread in own:
        thread.join(30)
        assert not thread.is_alive()


def test_a_batch_stays_readable_after_closing(start):
    source = Numbers(64)
    engine = start(source, Copy(), plan("thread"))
    engine.begin(source.epoch([range(8)]))
    batch = engine.wait_for(0)
    array = np.ndarray((8,), np.int64, engine.slabs.view, batch.slab * 4096)
    engine.close()
    assert array.tolist() == values(range(8))
    engine.scheduler.release(batch.slab)


def test_a_slab_released_after_closing_does_not_write_to_reused_descriptors(start):
    source = Numbers(64)
    engine = start(source, Copy(), plan("thread"))
    engine.close()
    pairs = [os.pipe() for _ in range(16)]  # these get the descriptors that the engine had
    for slab in range(3):
        engine.scheduler.release(slab)
    for read, write in pairs:
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
        os.close(read)
        os.close(write)


def test_a_failed_engine_can_be_closed_while_its_error_is_referenced(start):
    before = open_files()
    engine = start(Numbers(64), Copy({"start": "bad"}), plan())
    with pytest.raises(WorkerCrash) as caught:
        engine.wait_for(0)
    engine.close()
    assert caught.value.__traceback__ is not None
    assert open_files() == before


def test_an_engine_can_be_closed_by_the_garbage_collector_in_its_own_thread(leaves_nothing):
    source = Numbers(64)
    engine = Engine(source, Copy(), plan("thread"))
    closed = threading.Event()
    engine.scheduler.post(lambda close=engine.close: (close(), closed.set()))
    assert closed.wait(30)
    engine.scheduler._thread.join(30)
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {here!r})
from tests.support.engine_fakes import Copy, Numbers, plan, take
from penstock.engine.engine import Engine
source = Numbers(64)
engine = Engine(source, Copy(), plan({executor!r}))
engine.begin(source.epoch([range(8)] * 8))
take(engine, 0)
print(*[slot.worker.process.pid for slot in engine.scheduler.dispatch.workers if hasattr(slot.worker, "process")])
"""


@both
def test_a_program_that_does_not_close_its_engine_can_end(executor):
    program = SCRIPT.format(here=str(Path(__file__).parents[2]), executor=executor)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
