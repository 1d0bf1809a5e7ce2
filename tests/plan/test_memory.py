"""Memory needs of loaders, calculated by hand, and the messages if that memory is not free."""

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


def test_the_need_of_a_loader_with_workers_is_that_calculated_by_hand():
    # 32 workers that prefetch 12 batches of 24 images of 1024² × 3 floats, each with 2 MB of features
    batch = 24 * (1024 * 1024 * 3 * 4 + 2 * MB)
    need = torch_need(workers=32, prefetch=12, batch_bytes=batch, worker_bytes=300 * MB)
    assert need.batches_bytes == (32 * 12 + 1 + 32) * batch
    assert need.workers_bytes == 32 * 300 * MB
    assert need.shared_bytes == (32 * 12 + 1) * batch
    assert need.total_bytes == need.batches_bytes + need.workers_bytes


def test_without_workers_only_one_batch_is_made_at_a_time():
    need = torch_need(workers=0, prefetch=2, batch_bytes=10 * MB)
    assert (need.batches_bytes, need.workers_bytes, need.shared_bytes) == (30 * MB, 0, 0)


def test_pinned_batches_are_rounded_to_powers_of_two_and_need_less_shared_memory():
    batch = 5 << 20
    plain, pinned = (
        torch_need(workers=4, prefetch=2, batch_bytes=batch, worker_bytes=0, pinned=pin) for pin in (False, True)
    )
    assert plain.batches_bytes == (8 + 1 + 4) * batch
    assert pinned.batches_bytes == (8 + 1) * (8 << 20) + 4 * batch + batch
    assert pinned.shared_bytes < plain.shared_bytes


@pytest.mark.parametrize(("size", "allocated"), [(0, 0), (1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_sizes_are_rounded_up_to_powers_of_two(size, allocated):
    assert power_of_two(size) == allocated


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 1 << 30), st.booleans())
def test_more_workers_batches_or_bytes_need_more_memory(workers, prefetch, batch, pinned):
    def need(**changed):
        arguments = {"workers": workers, "prefetch": prefetch, "batch_bytes": batch, "worker_bytes": 1 << 28, **changed}
        return torch_need(pinned=pinned, **arguments)

    assert need(workers=workers + 1).total_bytes > need().total_bytes
    assert need(prefetch=prefetch + 1).total_bytes > need().total_bytes
    assert need(batch_bytes=batch * 2).total_bytes > need().total_bytes
    assert need().shared_bytes <= need().batches_bytes


@pytest.mark.parametrize("invalid", [{"workers": -1}, {"prefetch": 0}, {"batch_bytes": -1}])
def test_impossible_settings_are_refused(invalid):
    with pytest.raises(SettingError):
        torch_need(**{"workers": 1, "prefetch": 2, "batch_bytes": 1, **invalid})


def test_a_need_that_fits_is_described_with_its_numbers():
    fit = fits(MemoryNeed(batches_bytes=MB, workers_bytes=MB), 10 * MB)
    assert fit
    assert fit.text == "needs 2 MB of 10 MB free"


def test_a_need_that_does_not_fit_is_described_with_its_calculation():
    need = torch_need(workers=32, prefetch=12, batch_bytes=350 * MB, worker_bytes=300 * MB)
    fit = fits(need, 64_000 * MB)
    assert not fit
    assert "32 workers × (prefetch 12 + 1 in progress) × 350 MB" in fit.text
    assert "64 GB are free" in fit.text


def test_only_the_given_share_of_the_free_memory_may_be_used():
    need = MemoryNeed(batches_bytes=6 * MB, workers_bytes=0)
    assert fits(need, 10 * MB)
    assert not fits(need, 10 * MB, share=0.5)
    assert "of which 50% may be used" in fits(need, 10 * MB, share=0.5).text


def test_shared_memory_is_checked_separately():
    need = torch_need(workers=4, prefetch=2, batch_bytes=20 * MB, worker_bytes=0)
    fit = fits(need, 64_000 * MB, shared_free=64 * MB)
    assert not fit
    assert "180 MB of shared memory and 64 MB are free" in fit.text


def test_free_memory_is_measured_if_it_is_not_given():
    assert fits(MemoryNeed(batches_bytes=1, workers_bytes=0))
    assert not fits(MemoryNeed(batches_bytes=1 << 60, workers_bytes=0))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm")
def test_free_shared_memory_is_measured():
    assert shared_free_bytes() > 0


def test_free_shared_memory_is_unknown_without_its_folder(tmp_path):
    assert shared_free_bytes(tmp_path / "none") is None


def test_the_memory_of_a_worker_is_estimated_from_this_process():
    assert 1 * MB < own_bytes() < 64_000 * MB


def test_the_memory_of_torch_is_added_if_it_is_not_imported():
    code = (
        "import sys; from penstock.plan.memory import own_bytes; without = own_bytes(); "
        "sys.modules['torch'] = sys; print(without - own_bytes())"
    )
    added_bytes = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert added_bytes == pytest.approx(TORCH_BYTES, rel=0.1)
