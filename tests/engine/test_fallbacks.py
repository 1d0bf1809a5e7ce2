"""Threads that decode while the worker processes start."""

import os
import threading

from tests.support.engine_fakes import Copy, Numbers, plan, take_all

from penstock.engine import scheduler as conductor_module


def pids(batches):
    return {value for _, extras in batches for _, name, value in extras if name == "pid"}


WHO = Copy(dict.fromkeys(range(64), "who"))


def test_the_first_batch_does_not_wait_for_processes_to_start(start):
    supply = Numbers(64)
    engine = start(supply, WHO, plan("process", stopgaps=True))
    assert pids(take_all(engine, supply, [range(8)])) == {os.getpid()}


def test_processes_take_over_when_they_are_ready(start, eventually):
    supply = Numbers(64)
    engine = start(supply, WHO, plan("process", stopgaps=True))
    eventually(engine, lambda: engine.conductor.dispatch.settled)
    seen = pids(take_all(engine, supply, [range(32), range(32, 64)]))
    assert seen
    assert os.getpid() not in seen


def test_processes_are_not_started_before_the_first_batch_is_complete(start, eventually, monkeypatch):
    monkeypatch.setattr(conductor_module, "PUT_OFF_S", 3600.0)
    supply = Numbers(64)
    engine = start(supply, WHO, plan("process", stopgaps=True))
    dispatch = engine.conductor.dispatch
    assert [seat.stopgap for seat in dispatch.seats] == [True, True]
    take_all(engine, supply, [range(8)])
    eventually(engine, lambda: len(dispatch.seats) == 4 or dispatch.settled)


def test_but_not_put_off_for_long(start, eventually, monkeypatch):
    monkeypatch.setattr(conductor_module, "PUT_OFF_S", 0.0)
    engine = start(Numbers(64), WHO, plan("process", stopgaps=True))
    eventually(engine, lambda: engine.conductor.dispatch.settled)


def test_without_them_nothing_is_decoded_in_this_process(start):
    supply = Numbers(64)
    engine = start(supply, WHO, plan("process"))
    assert os.getpid() not in pids(take_all(engine, supply, [range(8)]))


def test_an_engine_that_is_closed_while_processes_start_leaves_nothing(start):
    engine = start(Numbers(64), Copy(), plan("process", stopgaps=True))
    engine.close()


def test_workers_are_pinned_to_the_cores_they_are_given(start, eventually):
    core = min(os.sched_getaffinity(0))
    engine = start(Numbers(64), Copy(), plan("process", workers=2, cores=(core,)))
    eventually(engine, lambda: engine.conductor.dispatch.settled)
    masks = [os.sched_getaffinity(seat.worker.process.pid) for seat in engine.conductor.dispatch.seats]
    assert masks == [{core}, {core}]


def test_until_the_first_batch_is_complete_only_the_next_few_are_read(start, eventually):
    supply = Numbers(64 * 8)
    supply.gate = threading.Event()
    engine = start(supply, Copy(), plan("thread", readers=32, arena_bytes=64 * 4096))
    engine.begin(supply.epoch([range(first, first + 8) for first in range(0, 64 * 8, 8)]))
    residency = engine.conductor.residency
    eventually(engine, lambda: residency.loading > 0)
    early = []
    for _ in range(8):  # it has had eight occasions to ask for more
        eventually(engine, lambda: early.append(residency.loading) or True)
    assert max(early) == 2 * conductor_module.AT_FIRST
    supply.gate.set()
    eventually(engine, lambda: len(supply.filled) > 8)
