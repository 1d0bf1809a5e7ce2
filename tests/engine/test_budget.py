import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.budget import LEAST_SLABS, MOST_SLABS, PROCESS_BYTES, Demand, default_budget, share_out
from penstock.errors import SettingError

MiB = 1 << 20

demands = st.builds(
    Demand,
    slab_bytes=st.integers(4096, 512 * MiB),
    block_bytes=st.integers(1, 16 * MiB),
    largest_block_bytes=st.integers(1, 512 * MiB),
    blocks_in_use=st.integers(1, 256),
    processes=st.integers(0, 64),
)


@given(st.integers(1, 64 << 30), demands)
def test_the_shares_are_within_the_budget_or_refused_with_what_is_needed(budget, demand):
    try:
        shares = share_out(budget, demand)
    except SettingError as error:
        needed = int(error.reason.rsplit("make ", 1)[1].removesuffix(" MiB"))
        assert needed * MiB > budget
        share_out(needed * MiB, demand)
        return
    used = shares.slabs * demand.slab_bytes + shares.arena_bytes + demand.processes * PROCESS_BYTES
    assert used <= budget
    assert LEAST_SLABS <= shares.slabs <= MOST_SLABS
    assert shares.arena_bytes >= 2 * demand.largest_block_bytes


def test_the_error_says_what_makes_up_the_need():
    with pytest.raises(SettingError) as caught:
        share_out(100 * MiB, Demand(50 * MiB, MiB, 10 * MiB, 64, 2))
    text = str(caught.value)
    assert all(part in text for part in ("100 MiB", "3 batches of 50 MiB", "20 MiB for blocks", "128 MiB for workers"))
    assert "batch_size" in text


def test_a_wealthy_run_has_all_its_lanes_in_the_arena_twice():
    shares = share_out(8 << 30, Demand(50 * MiB, 4 * MiB, 10 * MiB, 64, 2))
    assert shares.arena_bytes == 2 * 64 * 4 * MiB
    assert shares.slabs == (8 << 30) // 8 // (50 * MiB)


@pytest.mark.parametrize(("slab", "slabs"), [(MiB // 4, MOST_SLABS), (MiB, MOST_SLABS), (8 * MiB, 16), (100 * MiB, 8)])
def test_small_batches_get_many_slabs_and_large_ones_some(slab, slabs):
    assert share_out(1 << 30, Demand(slab, MiB, MiB, 8, 2)).slabs == slabs


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", ".").replace("v1_", "memory/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_a_version_2_container_gives_a_quarter_of_what_it_has_left(tmp_path):
    write(tmp_path, memory__max=f"{40 * MiB}\n", memory__current=f"{8 * MiB}\n")
    assert default_budget(tmp_path) == 8 * MiB


def test_a_version_1_container_too(tmp_path):
    write(tmp_path, v1_memory__limit_in_bytes=f"{40 * MiB}\n", v1_memory__usage_in_bytes=f"{8 * MiB}\n")
    assert default_budget(tmp_path) == 8 * MiB


def test_cached_files_count_as_free(tmp_path):
    stat = f"anon {4 * MiB}\nfile {36 * MiB}\ninactive_file {20 * MiB}\nactive_file {16 * MiB}\n"
    write(tmp_path, memory__max=f"{40 * MiB}\n", memory__current=f"{40 * MiB}\n", memory__stat=stat)
    assert default_budget(tmp_path) == 9 * MiB


def test_cached_files_count_as_free_in_version_1(tmp_path):
    write(
        tmp_path,
        v1_memory__limit_in_bytes=f"{40 * MiB}\n",
        v1_memory__usage_in_bytes=f"{40 * MiB}\n",
        v1_memory__stat=f"inactive_file 1\ntotal_inactive_file {20 * MiB}\ntotal_active_file {16 * MiB}\n",
    )
    assert default_budget(tmp_path) == 9 * MiB


@pytest.mark.parametrize(
    "files", [{}, {"memory__max": "max\n", "memory__current": "1\n"}, {"memory__max": "junk", "memory__current": "1"}]
)
def test_without_a_limit_the_machine_counts(tmp_path, files, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 400 * MiB}))
    write(tmp_path, **files)
    assert default_budget(tmp_path) == 100 * MiB
