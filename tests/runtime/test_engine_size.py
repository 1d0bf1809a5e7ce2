"""The size of the engine on machines with given numbers of cores and bytes of memory."""

import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loader_helpers import loader_settings

from penstock.core import cores as cores_module
from penstock.core.slab_layout import SlabLayout, SlotSpec
from penstock.data.sources.base import ReadSizes
from penstock.errors import SettingError
from penstock.options import EngineOptions, LoaderOptions
from penstock.runtime import engine_size as size_module
from penstock.runtime.engine_size import (
    MAX_SLABS,
    MIN_SLABS,
    PROCESS_BYTES,
    MemoryDemand,
    choose_executor,
    default_budget,
    plan_engine,
    share_memory,
)

BLOCKS = ReadSizes(np.full(100, 2 << 20), 64)


@pytest.fixture
def cores(monkeypatch):
    def have(count):
        monkeypatch.setattr(cores_module, "usable_cores", lambda: count)

    return have


def slab_of(size, samples=64):
    return SlabLayout({"image": SlotSpec((size // samples,), "uint8")}, samples)


def options(**settings):
    """Options of a loader; the names of all groups may be used."""
    settings.setdefault("memory_bytes", 4 << 30)
    return LoaderOptions(batch_size=64, **loader_settings(**settings))


def plan(layout=None, *, busy_threads=0, **settings):
    layout = layout or slab_of(8 << 20)
    return plan_engine(options(**settings), layout, BLOCKS, runs_user_code=False, busy_threads=busy_threads)


def test_workers_start_at_up_to_eight_and_may_grow_to_all_cores_but_one(cores):
    cores(4)
    assert (plan().workers, plan().max_workers) == (4, 4)
    cores(6)
    assert (plan().workers, plan().max_workers) == (5, 5)
    cores(32)
    assert (plan().workers, plan().max_workers) == (8, 31)


def test_workers_grow_only_as_far_as_the_memory_budget_allows(cores):
    cores(128)
    small = plan(memory_bytes=1 << 30)
    assert small.workers == 8
    assert 8 <= small.max_workers < 16


def test_a_number_that_the_user_sets_is_not_tuned(cores):
    cores(32)
    knobs = plan(num_workers=3, num_readers=7).knobs()
    assert (knobs.workers.low, knobs.workers.value, knobs.workers.high) == (3, 3, 3)
    assert (knobs.readers.low, knobs.readers.value, knobs.readers.high) == (7, 7, 7)


def test_a_number_that_is_not_set_is_tuned(cores):
    cores(2)
    knobs = plan().knobs()
    assert (knobs.readers.low, knobs.readers.value, knobs.readers.high) == (1, 4, 32)


def test_threads_that_copy_to_a_gpu_have_cores_of_their_own_where_there_are_enough(cores):
    def most(busy_threads):
        return plan(memory_bytes=8 << 30, busy_threads=busy_threads).max_workers

    cores(16)
    assert most(2) == most(0) - 2
    cores(4)
    assert most(2) == most(0)


def test_the_executor_is_processes_unless_this_rank_has_one_core(cores, monkeypatch):
    cores(2)
    assert choose_executor(EngineOptions(), runs_user_code=False) == "process"
    cores(1)
    assert choose_executor(EngineOptions(), runs_user_code=False) == "thread"
    assert choose_executor(EngineOptions(executor="process"), runs_user_code=False) == "process"
    cores(2)
    monkeypatch.setattr(cores_module, "_launcher_cores", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert choose_executor(EngineOptions(), runs_user_code=False) == "thread"


def test_on_one_core_the_users_code_runs_in_a_process_where_its_generators_are_seeded(cores):
    cores(1)
    assert choose_executor(EngineOptions(), runs_user_code=True) == "process"
    assert choose_executor(EngineOptions(executor="thread"), runs_user_code=True) == "thread"


def test_the_executor_is_threads_without_a_gil_and_on_windows(cores, monkeypatch):
    cores(8)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert choose_executor(EngineOptions(), runs_user_code=False) == "thread"
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert choose_executor(EngineOptions(), runs_user_code=False) == "thread"
    with pytest.raises(SettingError, match="not available on Windows"):
        choose_executor(EngineOptions(executor="process"), runs_user_code=False)


def test_workers_with_affinity_of_two_ranks_of_a_machine_share_no_core(cores, monkeypatch):
    cores(4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    taken = []
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        taken.append(set(plan(num_workers=2, worker_affinity=True).cores))
    assert taken[0] | taken[1] == {0, 1, 2, 3}
    assert plan(num_workers=2).cores == ()


def test_a_source_without_blocks_needs_no_memory_for_them(cores):
    cores(2)
    no_blocks = ReadSizes(np.zeros(0, np.int64), 1)
    made = plan_engine(options(memory_bytes=1 << 30), slab_of(8 << 20), no_blocks, runs_user_code=True)
    assert made.slabs >= 3
    assert not made.stopgaps


def test_more_batches_are_prefetched_if_they_are_small_and_fewer_if_they_are_large(cores):
    cores(2)
    sizes = (1 << 20, 8 << 20, 30 << 20, 100 << 20, 500 << 20)
    prefetch = [plan(slab_of(slab_bytes), memory_bytes=8 << 30).knobs().lookahead for slab_bytes in sizes]
    assert [knob.value for knob in prefetch] == [16, 8, 4, 4, 2]
    assert [knob.high for knob in prefetch] == [63, 63, 33, 9, 7]


def test_enough_batches_of_few_samples_are_prefetched_for_all_workers_to_have_some(cores):
    cores(16)

    def prefetched(samples, slab_bytes=64 << 20):
        return plan(slab_of(slab_bytes, samples), memory_bytes=32 << 30).knobs().lookahead.value

    assert [prefetched(samples) for samples in (256, 64, 32, 24, 16)] == [4, 4, 8, 10, 15]
    assert prefetched(16, slab_bytes=256 << 20) == 4  # a GiB in all
    assert prefetched(1, slab_bytes=8 << 20) == 63  # as many as there are slabs


def test_the_engine_knows_which_part_of_a_slab_every_batch_fills(cores):
    cores(2)
    layout = SlabLayout({"image": SlotSpec((5000,), "uint8")}, 2, {"points": 100_000})
    made = plan(layout, memory_bytes=1 << 30)
    assert made.filled_bytes == 12288
    assert made.slab_bytes > 2 * 100_000


def test_ranks_of_a_machine_divide_its_cores_and_its_memory(cores, monkeypatch):
    cores(32)
    monkeypatch.setattr(cores_module, "_launcher_cores", lambda: 32)
    monkeypatch.setattr(size_module, "default_budget", lambda: 2 << 30)
    alone = plan(memory_bytes=None, executor="thread")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    one_of_four = plan(memory_bytes=None, executor="thread")
    assert (alone.max_workers, alone.slabs) == (31, 32)
    assert (one_of_four.max_workers, one_of_four.slabs) == (7, 8)


# -- memory ---------------------------------------------------------------------------------------------------------

MiB = 1 << 20

DEMANDS = st.builds(
    MemoryDemand,
    slab_bytes=st.integers(4096, 512 * MiB),
    block_bytes=st.integers(1, 16 * MiB),
    largest_block_bytes=st.integers(1, 512 * MiB),
    blocks_in_use=st.integers(1, 256),
    processes=st.integers(0, 64),
)


@given(st.integers(1, 64 << 30), DEMANDS)
def test_the_shares_are_within_the_budget_or_refused_with_the_needed_memory(budget, demand):
    try:
        shares = share_memory(budget, demand)
    except SettingError as error:
        needed = int(error.reason.rsplit("make ", 1)[1].removesuffix(" MiB"))
        assert needed * MiB > budget
        share_memory(needed * MiB, demand)
        return
    used = shares.slabs * demand.slab_bytes + shares.arena_bytes + demand.processes * PROCESS_BYTES
    assert used <= budget
    assert MIN_SLABS <= shares.slabs <= MAX_SLABS
    assert shares.arena_bytes >= 2 * demand.largest_block_bytes


def test_the_error_lists_what_the_memory_is_needed_for():
    with pytest.raises(SettingError) as caught:
        share_memory(100 * MiB, MemoryDemand(50 * MiB, MiB, 10 * MiB, 64, 2))
    text = str(caught.value)
    assert all(part in text for part in ("100 MiB", "3 batches of 50 MiB", "20 MiB for blocks", "128 MiB for workers"))
    assert "batch_size" in text


def test_with_much_memory_the_arena_holds_two_blocks_of_every_lane():
    shares = share_memory(8 << 30, MemoryDemand(50 * MiB, 4 * MiB, 10 * MiB, 64, 2))
    assert shares.arena_bytes == 2 * 64 * 4 * MiB
    assert shares.slabs == (8 << 30) // 8 // (50 * MiB)


@pytest.mark.parametrize(("slab", "slabs"), [(MiB // 4, MAX_SLABS), (MiB, MAX_SLABS), (8 * MiB, 16), (100 * MiB, 8)])
def test_there_are_many_slabs_for_small_batches_and_some_for_large_ones(slab, slabs):
    assert share_memory(1 << 30, MemoryDemand(slab, MiB, MiB, 8, 2)).slabs == slabs


def test_the_default_budget_is_a_quarter_of_the_free_memory(monkeypatch):
    monkeypatch.setattr(size_module, "free_bytes", lambda: 400 * MiB)
    assert default_budget() == 100 * MiB
