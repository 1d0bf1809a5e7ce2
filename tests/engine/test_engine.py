"""Batches and epochs of a running engine, and the errors that it raises."""

import os
import resource
import threading

import pytest
from tests.support.engine_fakes import Copy, Numbers, check, plan, shuffled, take, take_all, values

from penstock.core.contracts import EpochRequest
from penstock.engine import output_queue as output_queue_module
from penstock.engine import scheduler as scheduler_module
from penstock.engine.batch import PLANNED_AT_ONCE
from penstock.engine.ipc import Poller
from penstock.errors import PenstockError, SettingError, StorageError

both = pytest.mark.parametrize("executor", ["process", "thread"])


@pytest.fixture
def no_wait_times_out(monkeypatch):
    """Check that the scheduler is always woken by what it waits for, never by a timeout."""
    timeouts = []

    class WatchedPoller(Poller):
        def wait(self, descriptors, timeout_s):
            ready = super().wait(descriptors, 20 if timeout_s else 0)
            if not timeout_s:
                return ready
            if not ready:
                timeouts.append(timeout_s)
            return ready

    monkeypatch.setattr(scheduler_module, "Poller", WatchedPoller)
    yield
    assert timeouts == []


# -- batches and epochs ------------------------------------------------------------------------------------------------


@both
def test_every_slot_of_every_batch_is_filled_in_order(no_wait_times_out, start, executor):
    source = Numbers(500)
    engine = start(source, Copy(), plan(executor))
    batches = shuffled(500, 16)
    check(take_all(engine, source, batches), batches)
    assert engine.stats().samples == 500
    assert engine.stats().batches == len(batches)
    assert sorted(source.blocks_read) == list(range(source.blocks)), "each block is read once"
    assert engine.arena.used_bytes == 0


@both
def test_epochs_follow_one_another_on_the_same_workers(start, executor):
    source = Numbers(64)
    engine = start(source, Copy(), plan(executor))
    for epoch in range(5):
        batches = shuffled(64, 10, seed=epoch)
        check(take_all(engine, source, batches, first=100 * epoch), batches)
    assert engine.scheduler.dispatch.deaths == 0


@both
def test_samples_without_a_block_need_no_reader(start, executor):
    source = Numbers(40, blockless=True)
    engine = start(source, Copy(from_arena=False), plan(executor))
    batches = shuffled(40, 8)
    check(take_all(engine, source, batches), batches)
    assert source.blocks_read == []


def test_an_empty_batch_is_complete_at_once(start):
    source = Numbers(8)
    engine = start(source, Copy(), plan("thread"))
    batches = [[], [1, 2], [], [3]]
    check(take_all(engine, source, batches), batches)


def test_an_arena_smaller_than_the_working_set_still_finishes(no_wait_times_out, start):
    source = Numbers(256, per_block=8)  # 32 blocks of a page
    engine = start(source, Copy(), plan("thread", arena_bytes=4 * 4096))
    batches = shuffled(256, 32)
    check(take_all(engine, source, batches), batches)
    rereads = engine.scheduler.block_cache.rereads
    assert rereads > 0
    assert len(source.blocks_read) == source.blocks + rereads


def test_large_results_do_not_block_worker_and_scheduler(start):
    source = Numbers(4000, per_block=500)
    engine = start(source, Copy(dict.fromkeys(range(0, 4000, 100), "large")), plan(workers=1, slab_bytes=32768))
    ((found, extras),) = take_all(engine, source, [range(4000)])
    assert found == values(range(4000))
    assert len(extras) == 40


def test_more_than_a_thousand_open_files_are_no_obstacle(start):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        source = Numbers(16)
        engine = start(source, Copy(), plan())
        check(take_all(engine, source, [range(16)]), [range(16)])
        engine.close()
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- errors reach the training loop ------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("error", [StorageError("the disk is gone"), SystemExit(3)])
def test_an_error_of_a_reader_is_raised_by_every_wait(start, executor, error):
    source = Numbers(64)
    source.errors[3] = error
    engine = start(source, Copy(), plan(executor))
    engine.begin(source.epoch([range(24), range(24, 48)]))
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            engine.wait_for(1)
        assert caught.value is error


def test_workers_begin_with_the_first_batch_before_all_are_planned(start, monkeypatch):
    source = Numbers(640, blockless=True)
    engine = start(source, Copy(from_arena=False), plan("thread"))
    take_all(engine, source, [range(8)])
    calls = []
    for name in ("blocks_of", "task_rows"):
        method = getattr(source, name)
        monkeypatch.setattr(source, name, lambda *args, name=name, method=method: calls.append(name) or method(*args))
    take_all(engine, source, [range(first, first + 8) for first in range(0, 480, 8)], first=1)
    assert calls.index("task_rows") == PLANNED_AT_ONCE
    assert calls.count("blocks_of") == 60


@pytest.mark.parametrize("method", ["blocks_of", "block_bytes", "task_rows"])
def test_an_error_of_the_block_source_is_raised(start, method, monkeypatch):
    source = Numbers(64)

    def broken(*_):
        raise RuntimeError(f"{method} is broken")

    epoch = source.epoch([range(24)])
    monkeypatch.setattr(source, method, broken)
    engine = start(source, Copy(), plan("thread"))
    engine.begin(epoch)
    with pytest.raises(RuntimeError, match=method):
        engine.wait_for(0)


def test_an_error_of_the_order_is_raised(start):
    source = Numbers(64)
    epoch = source.epoch([range(24)])

    def requests():
        yield from epoch.batches
        raise RuntimeError("the order is broken")

    engine = start(source, Copy(), plan("thread"))
    engine.begin(EpochRequest(requests(), epoch.block_uses))
    with pytest.raises(RuntimeError, match="the order is broken"):
        engine.wait_for(1)


def test_a_block_larger_than_the_arena_is_an_error(start):
    source = Numbers(64, block_size=1 << 20)
    engine = start(source, Copy(), plan("thread", arena_bytes=1 << 16))
    engine.begin(source.epoch([range(24)]))
    with pytest.raises(SettingError, match="does not fit into an arena"):
        engine.wait_for(0)


def test_a_training_loop_that_keeps_every_slab_gets_an_error_and_does_not_hang(start, monkeypatch, eventually):
    monkeypatch.setattr(output_queue_module, "ALL_HELD_TIMEOUT_S", 0.0)
    monkeypatch.setattr(output_queue_module, "MAX_WAIT_S", 0.01)
    source = Numbers(64)
    engine = start(source, Copy(), plan("thread", slabs=3))
    engine.begin(source.epoch(shuffled(64, 8)))
    kept = [engine.wait_for(number) for number in range(3)]
    with pytest.raises(PenstockError, match=r"all 3 batches.*clone"):
        engine.wait_for(3)
    for batch in kept:
        engine.scheduler.release(batch.slab)
    eventually(engine, lambda: len(engine.scheduler.output_queue))
    assert take(engine, 3)[0] == values(shuffled(64, 8)[3])


def test_a_released_slab_does_not_wake_the_scheduler_while_enough_batches_are_complete(start, eventually, monkeypatch):
    source = Numbers(64)
    engine = start(source, Copy(), plan("thread", slabs=5))
    engine.begin(source.epoch(shuffled(64, 8)))
    eventually(engine, lambda: len(engine.scheduler.output_queue) == 4)
    complete, wake = [], engine.scheduler._wake
    monkeypatch.setattr(
        engine.scheduler, "_wake", lambda: (complete.append(len(engine.scheduler.output_queue)), wake())
    )
    take(engine, 0)
    assert complete == []
    take(engine, 1)
    assert complete[0] == 2
    eventually(engine, lambda: len(engine.scheduler.output_queue) == 4)


def test_taking_the_last_complete_batch_wakes_the_scheduler_for_released_slabs(start, eventually, monkeypatch):
    source = Numbers(64)
    engine = start(source, Copy(), plan("thread", slabs=3))
    engine.begin(source.epoch(shuffled(64, 8)))
    first = engine.wait_for(0)
    eventually(engine, lambda: len(engine.scheduler.output_queue) == 2)
    monkeypatch.setattr(scheduler_module, "MAX_WAIT_S", 3600.0)  # from its next wait on
    engine.scheduler.post(lambda: None)
    eventually(engine, lambda: not engine.scheduler._events)
    monkeypatch.setattr(output_queue_module, "ALL_HELD_TIMEOUT_S", 2.0)
    engine.scheduler.release(first.slab)
    kept = [engine.wait_for(1), engine.wait_for(2)]
    assert take(engine, 3)[0] == values(shuffled(64, 8)[3])
    for batch in kept:
        engine.scheduler.release(batch.slab)


def test_waiting_for_a_batch_of_an_abandoned_epoch_is_an_error(start):
    source = Numbers(64)
    engine = start(source, Copy(), plan("thread"))
    engine.begin(source.epoch(shuffled(64, 8)))
    take(engine, 0)
    check(take_all(engine, source, [range(8)], first=8), [range(8)])
    with pytest.raises(PenstockError, match="another iteration has begun"):
        engine.wait_for(1)


def test_a_wait_ends_with_an_error_when_the_engine_is_closed(start):
    source = Numbers(64)
    source.gate = threading.Event()
    engine = start(source, Copy(), plan("thread"))
    engine.begin(source.epoch([range(8)]))
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
    source.gate.set()
    closer.join(30)
    assert caught == ["the loader has been closed"]


def test_a_wakeup_that_was_lost_to_a_signal_is_recovered(start, monkeypatch, eventually):
    monkeypatch.setattr(scheduler_module, "MAX_WAIT_S", 0.05)
    engine = start(Numbers(8), Copy(), plan("thread"))
    engine.scheduler._wakeup._pending = True  # as after a signal between setting the flag and writing to the pipe
    eventually(engine, lambda: not engine.scheduler._wakeup._pending)


# -- abandoned epochs --------------------------------------------------------------------------------------------------


@both
def test_twenty_abandoned_epochs_lose_no_slab_and_no_memory(no_wait_times_out, start, executor, eventually):
    source = Numbers(256)
    engine = start(source, Copy(), plan(executor, arena_bytes=8 * 4096))
    for epoch in range(20):
        batches = shuffled(256, 16, seed=epoch)
        engine.begin(source.epoch(batches, 100 * epoch))
        for number in range(epoch % 4):
            assert take(engine, 100 * epoch + number)[0] == values(batches[number])
    batches = shuffled(256, 16, seed=99)
    check(take_all(engine, source, batches, first=10_000), batches)
    eventually(engine, lambda: sorted(engine.scheduler._free_slabs) == [0, 1, 2])
    eventually(engine, lambda: engine.arena.used_bytes == 0 and engine.scheduler.dispatch.in_progress == 0)


def test_a_worker_that_dies_with_samples_of_an_abandoned_epoch_loses_no_slab(start, tmp_path, eventually):
    source = Numbers(256)
    engine = start(source, Copy(dict.fromkeys(range(0, 256, 8), "die once"), str(tmp_path)), plan())
    for epoch in range(6):
        engine.begin(source.epoch(shuffled(256, 16, seed=epoch), 100 * epoch))
        take(engine, 100 * epoch)
    check(take_all(engine, source, [range(1, 8)], first=10_000), [range(1, 8)])
    eventually(engine, lambda: sorted(engine.scheduler._free_slabs) == [0, 1, 2])
    eventually(engine, lambda: engine.arena.used_bytes == 0)
