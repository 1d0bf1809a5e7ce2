import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import memory_budget as budget
from penstock.engine.memory_budget import (
    LEAST_SLABS,
    MOST_SLABS,
    PROCESS_BYTES,
    MemoryDemand,
    default_budget,
    share_memory,
)
from penstock.errors import SettingError

MiB = 1 << 20

demands = st.builds(
    MemoryDemand,
    slab_bytes=st.integers(4096, 512 * MiB),
    block_bytes=st.integers(1, 16 * MiB),
    largest_block_bytes=st.integers(1, 512 * MiB),
    blocks_in_use=st.integers(1, 256),
    processes=st.integers(0, 64),
)


@given(st.integers(1, 64 << 30), demands)
def test_the_shares_are_within_the_budget_or_refused_with_what_is_needed(budget, demand):
    try:
        shares = share_memory(budget, demand)
    except SettingError as error:
        needed = int(error.reason.rsplit("make ", 1)[1].removesuffix(" MiB"))
        assert needed * MiB > budget
        share_memory(needed * MiB, demand)
        return
    used = shares.slabs * demand.slab_bytes + shares.arena_bytes + demand.processes * PROCESS_BYTES
    assert used <= budget
    assert LEAST_SLABS <= shares.slabs <= MOST_SLABS
    assert shares.arena_bytes >= 2 * demand.largest_block_bytes


def test_the_error_says_what_makes_up_the_need():
    with pytest.raises(SettingError) as caught:
        share_memory(100 * MiB, MemoryDemand(50 * MiB, MiB, 10 * MiB, 64, 2))
    text = str(caught.value)
    assert all(part in text for part in ("100 MiB", "3 batches of 50 MiB", "20 MiB for blocks", "128 MiB for workers"))
    assert "batch_size" in text


def test_a_wealthy_run_has_all_its_lanes_in_the_arena_twice():
    shares = share_memory(8 << 30, MemoryDemand(50 * MiB, 4 * MiB, 10 * MiB, 64, 2))
    assert shares.arena_bytes == 2 * 64 * 4 * MiB
    assert shares.slabs == (8 << 30) // 8 // (50 * MiB)


@pytest.mark.parametrize(("slab", "slabs"), [(MiB // 4, MOST_SLABS), (MiB, MOST_SLABS), (8 * MiB, 16), (100 * MiB, 8)])
def test_small_batches_get_many_slabs_and_large_ones_some(slab, slabs):
    assert share_memory(1 << 30, MemoryDemand(slab, MiB, MiB, 8, 2)).slabs == slabs


def test_a_quarter_of_what_is_free_is_the_default(monkeypatch):
    monkeypatch.setattr(budget, "free_bytes", lambda: 400 * MiB)
    assert default_budget() == 100 * MiB
