"""How large an engine is made, on machines the test makes up."""

import os
import sys

import numpy as np
import pytest

from penstock.core import cores as cores_module
from penstock.core.slab_layout import SlabLayout, SlotSpec
from penstock.errors import SettingError
from penstock.options import EngineSettings
from penstock.runtime import start as sizing
from penstock.runtime.start import choose_executor, plan_engine

BLOCKS = np.full(100, 2 << 20)


@pytest.fixture
def cores(monkeypatch):
    def have(count):
        monkeypatch.setattr(cores_module, "usable_cores", lambda: count)

    return have


def slab_of(size, samples=64):
    return SlabLayout({"image": SlotSpec((size // samples,), "uint8")}, samples)


def plan(**settings):
    settings.setdefault("memory_bytes", 4 << 30)
    return plan_engine(EngineSettings(**settings), slab_of(8 << 20), BLOCKS, 64, own_code=True)


def test_as_many_workers_as_cores_up_to_eight_and_room_to_grow_to_all_but_one(cores):
    cores(4)
    assert (plan().workers, plan().most_workers) == (4, 4)
    cores(6)
    assert (plan().workers, plan().most_workers) == (5, 5)
    cores(32)
    assert (plan().workers, plan().most_workers) == (8, 31)


def test_workers_grow_only_as_far_as_the_memory_budget_allows(cores):
    cores(128)
    small = plan(memory_bytes=1 << 30)
    assert small.workers == 8
    assert 8 <= small.most_workers < 16


def test_what_is_set_has_no_room_to_be_changed(cores):
    cores(32)
    knobs = plan(workers=3, readers=7).knobs()
    assert (knobs.workers.least, knobs.workers.now, knobs.workers.most) == (3, 3, 3)
    assert (knobs.readers.least, knobs.readers.now, knobs.readers.most) == (7, 7, 7)


def test_what_is_not_set_has_room(cores):
    cores(2)
    knobs = plan().knobs()
    assert (knobs.readers.least, knobs.readers.now, knobs.readers.most) == (1, 4, 32)


def test_threads_that_send_to_a_card_have_cores_of_their_own_where_there_are_enough(cores):
    def most(senders):
        settings = EngineSettings(memory_bytes=8 << 30)
        return plan_engine(settings, slab_of(8 << 20), BLOCKS, 64, own_code=True, senders=senders).most_workers

    cores(16)
    assert most(senders=2) == most(senders=0) - 2
    cores(4)
    assert most(senders=2) == most(senders=0)


def test_auto_is_processes_unless_there_is_one_core_for_this_rank(cores, monkeypatch):
    cores(2)
    assert choose_executor(EngineSettings()) == "process"
    cores(1)
    assert choose_executor(EngineSettings()) == "thread"
    assert choose_executor(EngineSettings(executor="process")) == "process"
    cores(2)
    monkeypatch.setattr(cores_module, "_launcher_cores", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert choose_executor(EngineSettings()) == "thread"


def test_auto_is_threads_without_a_gil_and_on_windows(cores, monkeypatch):
    cores(8)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert choose_executor(EngineSettings()) == "thread"
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert choose_executor(EngineSettings()) == "thread"
    with pytest.raises(SettingError, match="not available on Windows"):
        choose_executor(EngineSettings(executor="process"))


def test_pinned_workers_of_two_ranks_of_a_machine_share_no_core(cores, monkeypatch):
    cores(4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    taken = []
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        taken.append(set(plan(workers=2, pin_workers=True).cores))
    assert taken[0] | taken[1] == {0, 1, 2, 3}
    assert plan(workers=2).cores == ()


def test_a_feed_without_blocks_needs_no_block_memory(cores):
    cores(2)
    made = plan_engine(EngineSettings(memory_bytes=1 << 30), slab_of(8 << 20), np.zeros(0, np.int64), 1, own_code=False)
    assert made.slabs >= 3
    assert not made.stopgaps


def test_of_small_batches_more_are_made_ahead_and_of_large_ones_fewer(cores):
    cores(2)
    ahead = {
        slab_bytes: plan_engine(
            EngineSettings(memory_bytes=8 << 30), slab_of(slab_bytes), BLOCKS, 64, own_code=True
        ).knobs()
        for slab_bytes in (1 << 20, 8 << 20, 30 << 20, 100 << 20, 500 << 20)
    }
    assert [knobs.look_ahead.now for knobs in ahead.values()] == [16, 8, 4, 4, 2]
    assert [knobs.look_ahead.most for knobs in ahead.values()] == [63, 63, 33, 9, 7]


def test_of_batches_of_few_samples_so_many_are_made_ahead_that_all_workers_have_some(cores):
    cores(16)

    def ahead(samples, slab_bytes=64 << 20):
        settings = EngineSettings(memory_bytes=32 << 30)
        return plan_engine(settings, slab_of(slab_bytes, samples), BLOCKS, 64, own_code=True).knobs().look_ahead.now

    assert [ahead(samples) for samples in (256, 64, 32, 24, 16)] == [4, 4, 8, 10, 15]
    assert ahead(16, slab_bytes=256 << 20) == 4  # a GiB in all
    assert ahead(1, slab_bytes=8 << 20) == 63  # as many as there are slabs


def test_what_every_batch_fills_is_told_to_the_engine(cores):
    cores(2)
    layout = SlabLayout({"image": SlotSpec((5000,), "uint8")}, 2, {"points": 100_000})
    made = plan_engine(EngineSettings(memory_bytes=1 << 30), layout, BLOCKS, 64, own_code=True)
    assert made.filled_bytes == 12288
    assert made.slab_bytes > 2 * 100_000


def test_ranks_of_a_machine_divide_its_cores_and_its_memory(cores, monkeypatch):
    cores(32)
    monkeypatch.setattr(cores_module, "_launcher_cores", lambda: 32)
    monkeypatch.setattr(sizing, "default_budget", lambda: 2 << 30)
    alone = plan(memory_bytes=None, executor="thread")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    one_of_four = plan(memory_bytes=None, executor="thread")
    assert (alone.most_workers, alone.slabs) == (31, 32)
    assert (one_of_four.most_workers, one_of_four.slabs) == (7, 8)
