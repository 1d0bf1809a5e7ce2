"""What loaders need, by hand, and what is said where it is not there."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.plan.memory import (
    TORCH_BYTES,
    MemoryNeed,
    fits,
    own_bytes,
    power_of_two,
    shared_free_bytes,
    torch_need,
)

MB = 1_000_000


def test_the_reports_setting_by_hand():
    # 32 workers, 12 ahead, 24 pictures of 1024² × 3 floats and 2 MB of features.
    batch = 24 * (1024 * 1024 * 3 * 4 + 2 * MB)
    need = torch_need(workers=32, prefetch=12, batch_bytes=batch, worker_bytes=300 * MB)
    assert need.batches_bytes == (32 * 12 + 1 + 32) * batch
    assert need.workers_bytes == 32 * 300 * MB
    assert need.shared_bytes == (32 * 12 + 1) * batch
    assert need.total_bytes == need.batches_bytes + need.workers_bytes


def test_without_workers_there_is_one_batch_at_a_time():
    need = torch_need(workers=0, prefetch=2, batch_bytes=10 * MB)
    assert (need.batches_bytes, need.workers_bytes, need.shared_bytes) == (30 * MB, 0, 0)


def test_pinned_batches_take_powers_of_two_and_leave_shared_memory():
    batch = 5 << 20
    plain, pinned = (
        torch_need(workers=4, prefetch=2, batch_bytes=batch, worker_bytes=0, pinned=pin) for pin in (False, True)
    )
    assert plain.batches_bytes == (8 + 1 + 4) * batch
    assert pinned.batches_bytes == (8 + 1) * (8 << 20) + 4 * batch + batch
    assert pinned.shared_bytes < plain.shared_bytes


@pytest.mark.parametrize(("size", "given"), [(0, 0), (1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_powers_of_two(size, given):
    assert power_of_two(size) == given


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 1 << 30), st.booleans())
def test_more_of_anything_needs_more(workers, prefetch, batch, pinned):
    def need(**more):
        given = {"workers": workers, "prefetch": prefetch, "batch_bytes": batch, "worker_bytes": 1 << 28, **more}
        return torch_need(pinned=pinned, **given)

    assert need(workers=workers + 1).total_bytes > need().total_bytes
    assert need(prefetch=prefetch + 1).total_bytes > need().total_bytes
    assert need(batch_bytes=batch * 2).total_bytes > need().total_bytes
    assert need().shared_bytes <= need().batches_bytes


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"prefetch": 0}, {"batch_bytes": -1}])
def test_loaders_that_are_none_are_refused(wrong):
    with pytest.raises(SettingError):
        torch_need(**{"workers": 1, "prefetch": 2, "batch_bytes": 1, **wrong})


def test_what_fits_is_said_with_its_numbers():
    fit = fits(MemoryNeed(batches_bytes=MB, workers_bytes=MB), 10 * MB)
    assert fit
    assert fit.text == "needs 2 MB of 10 MB free"


def test_what_cannot_fit_says_how_it_comes_about():
    need = torch_need(workers=32, prefetch=12, batch_bytes=350 * MB, worker_bytes=300 * MB)
    fit = fits(need, 64_000 * MB)
    assert not fit
    assert "32 workers × (prefetch 12 + 1 in progress) × 350 MB" in fit.text
    assert "64 GB are free" in fit.text


def test_a_share_of_the_free_memory_may_be_used():
    need = MemoryNeed(batches_bytes=6 * MB, workers_bytes=0)
    assert fits(need, 10 * MB)
    assert not fits(need, 10 * MB, share=0.5)
    assert "of which 50% may be used" in fits(need, 10 * MB, share=0.5).text


def test_shared_memory_of_a_container_is_a_limit_of_its_own():
    need = torch_need(workers=4, prefetch=2, batch_bytes=20 * MB, worker_bytes=0)
    fit = fits(need, 64_000 * MB, shared_free=64 * MB)
    assert not fit
    assert "180 MB of shared memory and 64 MB are free" in fit.text


def test_the_machine_is_asked_where_nobody_says_what_is_free():
    assert fits(MemoryNeed(batches_bytes=1, workers_bytes=0))
    assert not fits(MemoryNeed(batches_bytes=1 << 60, workers_bytes=0))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm")
def test_shared_memory_is_measured():
    assert shared_free_bytes() > 0


def test_shared_memory_that_is_not_there_is_not_known(tmp_path):
    assert shared_free_bytes(tmp_path / "none") is None


def test_a_worker_is_measured_on_the_process_that_asks():
    assert 1 * MB < own_bytes() < 64_000 * MB


def test_torch_is_added_where_it_is_not_imported():
    code = (
        "import sys; from penstock.plan.memory import own_bytes; a = own_bytes(); "
        "sys.modules['torch'] = sys; print(a - own_bytes())"
    )
    more = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert more == pytest.approx(TORCH_BYTES, rel=0.1)
