"""Whose memory is looked at: the host's, or that of a GPU as torch counts it."""

import sys
from types import SimpleNamespace

import pytest

from penstock.errors import SettingError
from penstock.plan.batch_size_sweep import GpuMemory, ProcessMemory, device_memory, sweep
from penstock.testing.clock import FakeClock


class FakeCuda:
    """What is asked of torch.cuda, and in which order."""

    def __init__(self, *, used=True):
        self.used = used
        self.asked = []

    def is_initialized(self):
        return self.used

    def is_available(self):
        return self.used

    def reset_peak_memory_stats(self, device):
        self.asked.append(("reset", device))

    def synchronize(self, device):
        self.asked.append(("wait", device))

    def max_memory_allocated(self, device):
        return 12345

    def empty_cache(self):
        self.asked.append(("empty", None))


@pytest.fixture
def torch(monkeypatch):
    def put(**cuda):
        fake = SimpleNamespace(cuda=FakeCuda(**cuda))
        monkeypatch.setitem(sys.modules, "torch", fake)
        return fake

    return put


def test_a_gpu_that_is_in_use_is_the_one(torch):
    torch()
    assert isinstance(device_memory(None), GpuMemory)
    assert isinstance(device_memory("cpu"), ProcessMemory)


def test_without_a_gpu_in_use_it_is_the_host(torch, monkeypatch):
    torch(used=False)
    assert isinstance(device_memory(None), ProcessMemory)
    monkeypatch.delitem(sys.modules, "torch")
    assert isinstance(device_memory(None), ProcessMemory)


def test_a_gpu_that_is_not_there_is_refused(torch):
    torch(used=False)
    with pytest.raises(SettingError, match="torch sees no GPU here"):
        device_memory("cuda")


def test_a_gpu_without_torch_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SettingError, match="needs torch"):
        device_memory("cuda:0")


@pytest.mark.parametrize("device", ["mps", "", "cudax", "gpu:0"])
def test_other_devices_are_refused_rather_than_timed_wrongly(device):
    with pytest.raises(SettingError, match="is not known"):
        device_memory(device)


def test_a_sweep_waits_for_the_gpu_and_gives_memory_back_between_sizes(torch):
    clock, fake = FakeClock(), torch()
    where = {"device": "cuda:1", "seconds_each": 4.0, "clock": clock}
    found = sweep(lambda _: clock.advance(0.01), lambda size: size, (1, 2), **where)
    assert [row.peak_bytes for row in found.rows] == [12345, 12345]
    kinds = [kind for kind, _ in fake.cuda.asked]
    assert kinds[:2] == ["reset", "wait"]
    assert kinds.count("empty") == 2
    assert kinds.count("wait") < 2 * 20  # of 400 steps each
    assert {device for kind, device in fake.cuda.asked if kind != "empty"} == {"cuda:1"}


def test_the_hosts_peak_is_read_from_the_kernel(tmp_path):
    (tmp_path / "clear_refs").write_text("")
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    memory = ProcessMemory(tmp_path)
    assert memory.peak_bytes() is None  # not reset yet: it would be the peak of something else
    memory.begin()
    assert (tmp_path / "clear_refs").read_text() == "5"
    assert memory.peak_bytes() == 2 << 20


@pytest.mark.parametrize("status", [None, "", "VmHWM:\n", "VmHWM: x kB\n"])
def test_where_the_kernel_does_not_say_the_peak_is_not_known(tmp_path, status):
    (tmp_path / "clear_refs").write_text("")
    if status is not None:
        (tmp_path / "status").write_text(status)
    memory = ProcessMemory(tmp_path)
    memory.begin()
    assert memory.peak_bytes() is None


def test_a_system_without_such_files_is_no_error(tmp_path):
    memory = ProcessMemory(tmp_path / "none")
    memory.begin()
    assert memory.peak_bytes() is None
