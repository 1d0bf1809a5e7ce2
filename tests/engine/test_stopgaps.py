"""Threads that decode while the worker processes start, and what else happens before the first batch is complete."""

import os
import threading

from tests.support.engine_fakes import Copy, Numbers, plan, take_all

from penstock.engine import scheduler as scheduler_module


def pids(batches):
    return {value for _, extras in batches for _, name, value in extras if name == "pid"}


PIDS = Copy(dict.fromkeys(range(64), "pid"))


def test_the_first_batch_does_not_wait_for_processes_to_start(start):
    source = Numbers(64)
    engine = start(source, PIDS, plan("process", stopgaps=True))
    assert pids(take_all(engine, source, [range(8)])) == {os.getpid()}


def test_processes_take_over_when_they_are_ready(start, eventually):
    source = Numbers(64)
    engine = start(source, PIDS, plan("process", stopgaps=True))
    eventually(engine, lambda: engine.scheduler.dispatch.settled)
    found = pids(take_all(engine, source, [range(32), range(32, 64)]))
    assert found
    assert os.getpid() not in found


def test_processes_are_not_started_before_the_first_batch_is_complete(start, eventually, monkeypatch):
    monkeypatch.setattr(scheduler_module, "DEFER_S", 3600.0)
    source = Numbers(64)
    engine = start(source, PIDS, plan("process", stopgaps=True))
    dispatch = engine.scheduler.dispatch
    assert [slot.stopgap for slot in dispatch.workers] == [True, True]
    take_all(engine, source, [range(8)])
    eventually(engine, lambda: len(dispatch.workers) == 4 or dispatch.settled)


def test_processes_are_started_after_a_time_even_without_a_batch(start, eventually, monkeypatch):
    monkeypatch.setattr(scheduler_module, "DEFER_S", 0.0)
    engine = start(Numbers(64), PIDS, plan("process", stopgaps=True))
    eventually(engine, lambda: engine.scheduler.dispatch.settled)


def test_without_stopgaps_no_sample_is_decoded_in_this_process(start):
    source = Numbers(64)
    engine = start(source, PIDS, plan("process"))
    assert os.getpid() not in pids(take_all(engine, source, [range(8)]))


def test_closing_while_processes_start_leaves_nothing(start):
    engine = start(Numbers(64), Copy(), plan("process", stopgaps=True))
    engine.close()


def test_workers_are_bound_to_their_cores(start, eventually):
    core = min(os.sched_getaffinity(0))
    engine = start(Numbers(64), Copy(), plan("process", workers=2, cores=(core,)))
    eventually(engine, lambda: engine.scheduler.dispatch.settled)
    masks = [os.sched_getaffinity(slot.worker.process.pid) for slot in engine.scheduler.dispatch.workers]
    assert masks == [{core}, {core}]


def test_until_the_first_batch_is_complete_few_blocks_are_read(start, eventually):
    source = Numbers(64 * 8)
    source.gate = threading.Event()
    engine = start(source, Copy(), plan("thread", readers=32, arena_bytes=64 * 4096))
    engine.begin(source.epoch([range(first, first + 8) for first in range(0, 64 * 8, 8)]))
    block_cache = engine.scheduler.block_cache
    eventually(engine, lambda: block_cache.loading > 0)
    loading = []
    for _ in range(8):  # eight times at which it could have requested more
        eventually(engine, lambda: loading.append(block_cache.loading) or True)
    assert max(loading) == 2 * scheduler_module.FIRST_LIMIT
    source.gate.set()
    eventually(engine, lambda: len(source.blocks_read) > 8)
