"""The batch-size sweep: samples per second, the knee, and what happens when a size does not fit."""

import subprocess
import sys

import pytest

from penstock.errors import SettingError
from penstock.plan.batch_size_sweep import MIN_STEPS, OUT_OF_MEMORY, WARM_UP_STEPS, Sweep, SweepRow, sweep
from penstock.testing.clock import FakeClock


def batch_of(size):
    return [0] * size


def run(seconds_of, sizes, clock=None, **options):
    """A step that takes as long as it is told to, on a clock of its own."""
    clock = clock or FakeClock()
    return sweep(lambda batch: clock.advance(seconds_of(len(batch))), batch_of, sizes, clock=clock, **options)


def test_half_the_steps_of_twice_the_batch_are_the_same_speed():
    found = run(lambda size: size / 29.8, (4, 8))
    assert [row.it_s for row in found.rows] == pytest.approx([7.45, 3.725])
    assert [row.samples_s for row in found.rows] == pytest.approx([29.8, 29.8])
    assert found.knee == 4


def test_the_knee_is_the_smallest_size_within_5_percent_of_the_best():
    found = run(lambda size: 0.01 + 0.001 * size, (1, 16, 64, 128, 256, 512))
    assert found.best.size == 512
    assert found.knee == 256  # 962 of 981 samples/s; 128 give 928


def test_a_size_beyond_which_it_gets_slower_is_not_the_best():
    found = run(lambda size: 0.1 if size <= 8 else 1.0, (4, 8, 16))
    assert (found.best.size, found.knee) == (8, 8)


def test_sizes_come_smallest_first_and_once():
    assert [row.size for row in run(lambda size: 0.5, (8, 2, 8, 4)).rows] == [2, 4, 8]


def test_a_batch_is_made_once_and_steps_go_on_for_the_time_given():
    clock, made, steps = FakeClock(), [], []

    def make(size):
        made.append(size)
        return size

    def step(size):
        steps.append(size)
        clock.advance(0.1)

    sweep(step, make, (1, 2), seconds_each=2.0, clock=clock)
    assert made == [1, 2]
    assert WARM_UP_STEPS + 20 <= steps.count(1) <= WARM_UP_STEPS + 21


def test_a_step_longer_than_the_time_given_is_still_done_some_times():
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
def test_after_a_size_that_does_not_fit_no_larger_one_is_tried(error):
    clock = FakeClock()

    def step(batch):
        if len(batch) >= 8:
            raise error
        clock.advance(1.0)

    found = sweep(step, batch_of, (4, 8, 16), clock=clock)
    assert [row.size for row in found.rows] == [4, 8]
    assert (found.rows[1].failed, found.rows[1].samples_s) == (OUT_OF_MEMORY, None)
    assert found.knee == 4


def test_a_batch_that_does_not_fit_is_the_same():
    clock = FakeClock()

    def make(size):
        if size > 4:
            raise MemoryError
        return size

    found = sweep(lambda _: clock.advance(1.0), make, (4, 8, 16), clock=clock)
    assert [row.failed for row in found.rows] == ["", OUT_OF_MEMORY]


def test_another_error_costs_its_size_only():
    clock = FakeClock()

    def step(batch):
        if len(batch) == 1:
            raise ValueError("Expected more than 1 value per channel\x1b[31m")
        clock.advance(1.0)

    found = sweep(step, batch_of, (1, 2, 4), clock=clock)
    assert found.rows[0].failed == "ValueError: Expected more than 1 value per channel\\x1b[31m"
    assert found.knee == 4


def test_a_step_that_runs_at_no_size_is_an_error_with_its_reason():
    def step(_):
        raise RuntimeError("no GPU here")

    with pytest.raises(SettingError, match="no batch size; with 1: RuntimeError: no GPU here"):
        sweep(step, batch_of, (1, 2))


def test_a_step_that_takes_no_time_is_none(monkeypatch):
    monkeypatch.setattr("penstock.plan.batch_size_sweep.MAX_STEPS", 1000)
    with pytest.raises(SettingError, match="is no step"):
        run(lambda size: 0.0, (1,))


@pytest.mark.parametrize("sizes", [(), (0,), (-4,), (True,), (2.0,), "ab", (1, None)])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(SettingError, match="sizes"):
        run(lambda size: 1.0, sizes)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(seconds):
    with pytest.raises(SettingError, match="seconds_each"):
        run(lambda size: 1.0, (1,), seconds_each=seconds)


def test_a_sweep_is_what_its_rows_say():
    rows = (
        SweepRow(size=1, failed="x"),
        SweepRow(size=2, samples_s=96.0, it_s=48.0),
        SweepRow(size=4, samples_s=100.0, it_s=25.0),
    )
    assert (Sweep(rows=rows).best.size, Sweep(rows=rows).knee) == (4, 2)


# -- torch ---------------------------------------------------------------------------------------------------------


def test_a_real_step_on_the_cpu():
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


def test_torchs_own_out_of_memory_on_the_cpu_is_seen():
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
