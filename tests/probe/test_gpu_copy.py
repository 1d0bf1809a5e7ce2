import sys
from types import SimpleNamespace

import pytest

from penstock.probe.gpu_copy import probe_copy
from penstock.probe.results import SkippedProbe
from penstock.testing import FakeClock

SIZE = 1 << 20


class Torch:
    """A torch module whose device copies at given rates by the test's clock; copies are queued as on a real device."""

    uint8 = "uint8"

    def __init__(self, clock, pinned_s=0.001, pageable_s=0.004):
        self.clock, self.costs = clock, {True: pinned_s, False: pageable_s}
        self.queued_s, self.copies, self.fails = 0.0, [], None
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            synchronize=self.synchronize,
            get_device_name=lambda: "H200",
            Event=lambda enable_timing: Event(self),
        )

    def synchronize(self):
        self.clock.advance(self.queued_s)
        self.queued_s = 0.0

    def ones(self, size, dtype):
        return Tensor(self, pinned=False)

    def empty(self, size, dtype, device):
        if self.fails:
            raise RuntimeError(self.fails)
        return Tensor(self, pinned=False)


class Tensor:
    def __init__(self, torch, pinned):
        self.torch, self.pinned = torch, pinned

    def pin_memory(self):
        return Tensor(self.torch, pinned=True)

    def copy_(self, source, non_blocking=False):
        self.torch.copies.append(source.pinned)
        self.torch.queued_s += self.torch.costs[source.pinned]


class Event:
    def __init__(self, torch):
        self.torch, self.at_s = torch, 0.0

    def record(self):
        self.at_s = self.torch.clock.now() + self.torch.queued_s

    def synchronize(self):
        self.torch.synchronize()

    def elapsed_time(self, end_event):
        return (end_event.at_s - self.at_s) * 1e3


def test_both_copy_rates_are_measured():
    clock = FakeClock()
    torch = Torch(clock)
    rates = probe_copy(SIZE, budget_s=0.4, clock=clock, torch=torch)
    assert rates.pinned_bytes_per_s == pytest.approx(SIZE / 0.001)
    assert rates.pageable_bytes_per_s == pytest.approx(SIZE / 0.004)
    assert (rates.device, rates.batch_bytes) == ("H200", SIZE)
    assert torch.copies.count(True) == pytest.approx(202, abs=1)  # 0.2 s of copies, and two that warm up
    assert rates.seconds <= 0.5


def test_slow_copies_are_timed_at_least_three_times():
    clock = FakeClock()
    torch = Torch(clock, pinned_s=5.0, pageable_s=5.0)
    rates = probe_copy(SIZE, budget_s=0.1, clock=clock, torch=torch)
    assert torch.copies.count(True) == 5
    assert rates.pinned_s == pytest.approx(5.0)


def test_a_device_without_enough_memory_skips_the_probe():
    torch = Torch(FakeClock())
    torch.fails = "CUDA out of memory. Tried to allocate 1.00 MiB\nGPU 0 has …"
    assert probe_copy(SIZE, torch=torch) == SkippedProbe("CUDA failed: CUDA out of memory. Tried to allocate 1.00 MiB")


def test_a_missing_device_skips_the_probe():
    no_device = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    assert probe_copy(SIZE, torch=no_device) == SkippedProbe("torch sees no CUDA device")


def test_a_missing_torch_skips_the_probe(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert probe_copy(SIZE) == SkippedProbe("torch is not installed")


def test_the_installed_torch_is_used():
    torch = pytest.importorskip("torch")
    found = probe_copy(1 << 16, budget_s=0.1)
    assert isinstance(found, SkippedProbe) is not torch.cuda.is_available()
