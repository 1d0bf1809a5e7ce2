"""The loads of `make bench-plan` and their settings."""

import pytest
from benchmarks.plan.loads import GRID_LOADS, LOADS, QUICK_LOADS
from benchmarks.plan.single_run import measure_setting
from tests.support.faults.fault import nothing_missing
from torch.utils.data import DataLoader

from penstock.tuner.result import WorkerSettings


def test_there_are_at_least_24_settings_to_predict_and_none_is_the_recorded_one():
    assert sum(len(load.predicted) for load in LOADS.values()) >= 24
    assert all(load.recorded not in load.predicted for load in LOADS.values())


def test_six_loads_have_a_grid_and_the_quick_ones_run_on_every_machine():
    assert len(GRID_LOADS) == 6
    assert {LOADS[name].fault.missing for name in QUICK_LOADS} == {nothing_missing}


@pytest.mark.parametrize("name", [name for name, load in LOADS.items() if load.fault.missing is nothing_missing])
def test_a_load_is_opened_with_its_batch_size_and_the_given_setting(name, tmp_path):
    load = LOADS[name]
    with load.open(tmp_path, WorkerSettings(2, 4)) as loader:
        assert isinstance(loader, DataLoader)
        assert (loader.num_workers, loader.prefetch_factor, loader.batch_size) == (2, 4, load.batch_size)
    with load.open(tmp_path, WorkerSettings()) as loader:
        assert len(next(iter(loader))) == load.batch_size


def test_a_setting_is_measured_in_samples_per_second(tmp_path):
    assert measure_setting("tiny samples", WorkerSettings(), tmp_path, 0.05) > 100
