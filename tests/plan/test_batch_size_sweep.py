"""The sweep over batch sizes: samples per second, the knee, sizes that do not fit, and the memory of the device."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from penstock.errors import SettingError
from penstock.plan.batch_size_sweep import (
    MIN_STEPS,
    OUT_OF_MEMORY,
    WARM_UP_STEPS,
    GpuMemory,
    ProcessMemory,
    Sweep,
    SweepRow,
    device_memory,
    sweep,
)
from penstock.testing.clock import FakeClock


def make_batch(size):
    return [0] * size


def sweep_of(step_s, sizes, **options):
    """Return the sweep over a step that takes `step_s(batch size)` seconds of a fake clock."""
    clock = FakeClock()
    return sweep(lambda batch: clock.advance(step_s(len(batch))), make_batch, sizes, clock=clock, **options)


def test_speed_is_in_samples_per_second_not_in_steps():
    found = sweep_of(lambda size: size / 29.8, (4, 8))
    assert [row.it_s for row in found.rows] == pytest.approx([7.45, 3.725])
    assert [row.samples_s for row in found.rows] == pytest.approx([29.8, 29.8])
    assert found.knee == 4


def test_the_knee_is_the_smallest_size_within_5_percent_of_the_best():
    found = sweep_of(lambda size: 0.01 + 0.001 * size, (1, 16, 64, 128, 256, 512))
    assert found.best.size == 512
    assert found.knee == 256  # 962 of 981 samples/s; 128 give 928


def test_the_best_size_is_not_the_largest_if_larger_ones_are_slower():
    found = sweep_of(lambda size: 0.1 if size <= 8 else 1.0, (4, 8, 16))
    assert (found.best.size, found.knee) == (8, 8)


def test_sizes_are_sorted_and_duplicates_removed():
    assert [row.size for row in sweep_of(lambda size: 0.5, (8, 2, 8, 4)).rows] == [2, 4, 8]


def test_each_size_reuses_one_batch_for_the_given_seconds():
    clock, made_sizes, stepped_sizes = FakeClock(), [], []

    def make(size):
        made_sizes.append(size)
        return size

    def step(size):
        stepped_sizes.append(size)
        clock.advance(0.1)

    sweep(step, make, (1, 2), seconds_each=2.0, clock=clock)
    assert made_sizes == [1, 2]
    assert WARM_UP_STEPS + 20 <= stepped_sizes.count(1) <= WARM_UP_STEPS + 21


def test_a_step_longer_than_the_given_seconds_runs_the_minimum_number_of_times():
    clock, steps = FakeClock(), []

    def step(size):
        steps.append(size)
        clock.advance(60.0)

    found = sweep(step, lambda size: size, (3,), seconds_each=1.0, clock=clock)
    assert len(steps) == WARM_UP_STEPS + MIN_STEPS
    assert found.rows[0].samples_s == pytest.approx(3 / 60)


# -- sizes that do not run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
)
def test_no_larger_size_is_tried_after_a_step_runs_out_of_memory(error):
    clock = FakeClock()

    def step(batch):
        if len(batch) >= 8:
            raise error
        clock.advance(1.0)

    found = sweep(step, make_batch, (4, 8, 16), clock=clock)
    assert [row.size for row in found.rows] == [4, 8]
    assert (found.rows[1].failed, found.rows[1].samples_s) == (OUT_OF_MEMORY, None)
    assert found.knee == 4


def test_no_larger_size_is_tried_after_a_batch_does_not_fit():
    clock = FakeClock()

    def make(size):
        if size > 4:
            raise MemoryError
        return size

    found = sweep(lambda _: clock.advance(1.0), make, (4, 8, 16), clock=clock)
    assert [row.failed for row in found.rows] == ["", OUT_OF_MEMORY]


def test_another_error_ends_only_its_own_size():
    clock = FakeClock()

    def step(batch):
        if len(batch) == 1:
            raise ValueError("Expected more than 1 value per channel\x1b[31m")
        clock.advance(1.0)

    found = sweep(step, make_batch, (1, 2, 4), clock=clock)
    assert found.rows[0].failed == "ValueError: Expected more than 1 value per channel\\x1b[31m"
    assert found.knee == 4


def test_a_step_that_runs_at_no_size_is_an_error():
    def step(_):
        raise RuntimeError("no GPU here")

    with pytest.raises(SettingError, match="no batch size; with 1: RuntimeError: no GPU here"):
        sweep(step, make_batch, (1, 2))


def test_a_step_that_takes_no_time_is_refused(monkeypatch):
    monkeypatch.setattr("penstock.plan.batch_size_sweep.MAX_STEPS", 1000)
    with pytest.raises(SettingError, match="is no step"):
        sweep_of(lambda size: 0.0, (1,))


@pytest.mark.parametrize("sizes", [(), (0,), (-4,), (True,), (2.0,), "ab", (1, None)])
def test_invalid_sizes_are_refused(sizes):
    with pytest.raises(SettingError, match="sizes"):
        sweep_of(lambda size: 1.0, sizes)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_invalid_seconds_are_refused(seconds):
    with pytest.raises(SettingError, match="seconds_each"):
        sweep_of(lambda size: 1.0, (1,), seconds_each=seconds)


def test_best_and_knee_ignore_rows_that_failed():
    rows = (
        SweepRow(size=1, failed="x"),
        SweepRow(size=2, samples_s=96.0, it_s=48.0),
        SweepRow(size=4, samples_s=100.0, it_s=25.0),
    )
    found = Sweep(rows=rows)
    assert (found.best.size, found.knee) == (4, 2)


# -- torch ---------------------------------------------------------------------------------------------------------


def test_a_torch_step_on_the_cpu_is_measured():
    import torch

    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(batch):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    found = sweep(step, lambda size: torch.randn(size, 32), (1, 8, 64), device="cpu", seconds_each=0.02)
    assert [row.size for row in found.rows] == [1, 8, 64]
    assert all(row.samples_s == pytest.approx(row.it_s * row.size) for row in found.rows)
    assert all(row.peak_bytes is None or row.peak_bytes > 1 << 20 for row in found.rows)
    assert found.knee in (1, 8, 64)


def test_torchs_out_of_memory_error_on_the_cpu_is_recognised():
    import torch

    def make(size):
        return torch.empty(size << 48, dtype=torch.uint8) if size > 1 else torch.zeros(1)

    found = sweep(lambda batch: batch.sum(), make, (1, 2, 4), seconds_each=0.01)
    assert [row.failed for row in found.rows] == ["", OUT_OF_MEMORY]


def test_torch_is_not_imported_for_a_plain_step():
    code = """
import sys
from penstock.plan.batch_size_sweep import sweep
import penstock.plan.document, penstock.plan.data_changes, penstock.plan.step_changes, penstock.plan.batch_size
sweep(lambda batch: sum(range(1000)), lambda size: size, (1, 2), seconds_each=0.01)
assert "torch" not in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")


# -- the memory of the device --------------------------------------------------------------------------------------


class FakeCuda:
    """Stands in for torch.cuda and keeps the calls in order, each with its device."""

    def __init__(self, *, in_use=True):
        self.in_use = in_use
        self.calls = []

    def is_initialized(self):
        return self.in_use

    def is_available(self):
        return self.in_use

    def reset_peak_memory_stats(self, device):
        self.calls.append(("reset", device))

    def synchronize(self, device):
        self.calls.append(("synchronize", device))

    def max_memory_allocated(self, device):
        return 12345

    def empty_cache(self):
        self.calls.append(("empty", None))


@pytest.fixture
def fake_torch(monkeypatch):
    """Return a function that installs a torch module whose only part is a FakeCuda."""

    def install(**cuda):
        fake = SimpleNamespace(cuda=FakeCuda(**cuda))
        monkeypatch.setitem(sys.modules, "torch", fake)
        return fake

    return install


def test_a_gpu_in_use_is_the_default_device(fake_torch):
    fake_torch()
    assert isinstance(device_memory(None), GpuMemory)
    assert isinstance(device_memory("cpu"), ProcessMemory)


def test_the_cpu_is_the_default_device_without_a_gpu_in_use(fake_torch, monkeypatch):
    fake_torch(in_use=False)
    assert isinstance(device_memory(None), ProcessMemory)
    monkeypatch.delitem(sys.modules, "torch")
    assert isinstance(device_memory(None), ProcessMemory)


def test_a_missing_gpu_is_refused(fake_torch):
    fake_torch(in_use=False)
    with pytest.raises(SettingError, match="torch sees no GPU here"):
        device_memory("cuda")


def test_a_gpu_without_torch_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SettingError, match="needs torch"):
        device_memory("cuda:0")


@pytest.mark.parametrize("device", ["mps", "", "cudax", "gpu:0"])
def test_other_devices_are_refused(device):
    with pytest.raises(SettingError, match="is not known"):
        device_memory(device)


def test_a_sweep_waits_for_the_gpu_and_frees_its_memory_between_sizes(fake_torch):
    clock, torch = FakeClock(), fake_torch()
    options = {"device": "cuda:1", "seconds_each": 4.0, "clock": clock}
    found = sweep(lambda _: clock.advance(0.01), lambda size: size, (1, 2), **options)
    assert [row.peak_bytes for row in found.rows] == [12345, 12345]
    names = [name for name, _ in torch.cuda.calls]
    assert names[:2] == ["reset", "synchronize"]
    assert names.count("empty") == 2
    assert names.count("synchronize") < 2 * 20  # two sizes with 400 steps each
    assert {device for name, device in torch.cuda.calls if name != "empty"} == {"cuda:1"}


def test_the_peak_memory_of_the_process_is_read_from_proc(tmp_path):
    (tmp_path / "clear_refs").write_text("")
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    memory = ProcessMemory(tmp_path)
    assert memory.peak_bytes() is None  # not reset yet: it would be the peak of earlier work
    memory.begin()
    assert (tmp_path / "clear_refs").read_text() == "5"
    assert memory.peak_bytes() == 2 << 20


@pytest.mark.parametrize("status", [None, "", "VmHWM:\n", "VmHWM: x kB\n"])
def test_a_peak_that_proc_does_not_have_is_unknown(tmp_path, status):
    (tmp_path / "clear_refs").write_text("")
    if status is not None:
        (tmp_path / "status").write_text(status)
    memory = ProcessMemory(tmp_path)
    memory.begin()
    assert memory.peak_bytes() is None


def test_the_peak_is_unknown_without_proc(tmp_path):
    memory = ProcessMemory(tmp_path / "none")
    memory.begin()
    assert memory.peak_bytes() is None
