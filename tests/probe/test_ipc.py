import shutil
import sys
from types import SimpleNamespace

import pytest

from penstock.core.slab_layout import SlotSpec
from penstock.errors import SettingError, WorkerCrash
from penstock.probe import ipc as ipc_module
from penstock.probe.ipc import BATCHES_MAX, ConstantDataset, probe_ipc

torch = pytest.importorskip("torch")

SLOTS = {"image": SlotSpec((3, 16, 16), "|u1"), "features": SlotSpec((4,), "<f2")}


class TickingClock:
    """A clock that advances by a given time whenever it is read."""

    def __init__(self, tick_s):
        self.tick_s, self.time_s = tick_s, 0.0

    def now(self):
        self.time_s += self.tick_s
        return self.time_s

    def sleep(self, seconds):
        raise AssertionError("the probe must not sleep")


def test_batches_of_the_given_shape_are_timed_through_a_real_worker():
    clock = TickingClock(0.01)
    cost = probe_ipc(SLOTS, 8, budget_s=1.0, clock=clock, cpu_s=TickingClock(0.5).now)
    assert (cost.batch_size, cost.batch_bytes, cost.arrays) == (8, 8 * (3 * 16 * 16 + 8), 2)
    assert cost.batches == pytest.approx(75, abs=1)  # three quarters of the second; the clock is read once per batch
    assert cost.batch_s == pytest.approx(0.01)
    assert cost.main_cpu_s == pytest.approx(0.5 / cost.batches)
    assert cost.samples_per_s == pytest.approx(800)


def test_without_time_one_batch_is_timed():
    cost = probe_ipc(SLOTS, 1, budget_s=0.01, clock=TickingClock(1.0))
    assert cost.batches == 1


def test_a_clock_that_stands_still_does_not_hang_the_probe(monkeypatch):
    monkeypatch.setattr(ipc_module, "_loader", lambda dataset, batch_size: iter(lambda: dataset[0], None))
    cost = probe_ipc(SLOTS, 1, clock=TickingClock(0.0))
    assert cost.batches == BATCHES_MAX
    assert cost.batch_s > 0


def test_the_dataset_returns_the_same_sample_for_every_index():
    dataset = ConstantDataset({"x": 1})
    assert dataset[0] is dataset[len(dataset) - 1]


@pytest.mark.parametrize(("slots", "batch_size"), [({}, 4), (SLOTS, 0)])
def test_an_empty_batch_is_refused(slots, batch_size):
    with pytest.raises(SettingError, match="nothing to transfer"):
        probe_ipc(slots, batch_size)


def test_a_type_that_torch_does_not_know_is_a_worker_crash():
    with pytest.raises(WorkerCrash, match="DataLoader failed"):
        probe_ipc({"x": SlotSpec((2,), "<U3")}, 2, budget_s=0.1)


def test_shared_memory_that_is_too_small_is_an_error_before_the_worker_starts(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64 << 20))
    with pytest.raises(SettingError, match="do not fit into /dev/shm"):
        probe_ipc({"x": SlotSpec((1 << 20,), "<f4")}, 32)


def test_a_missing_torch_is_an_error_with_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    with pytest.raises(SettingError, match="torch is not installed"):
        probe_ipc(SLOTS, 1)
