"""What is loaded, and with which settings."""

import pytest
from benchmarks.plan.loads import GRID_LOADS, LOADS, QUICK_LOADS
from benchmarks.plan.single_run import measured
from tests.support.faults.fault import anywhere
from torch.utils.data import DataLoader

from penstock.tuner.result import WorkerSettings


def test_there_are_enough_settings_to_judge_and_none_is_the_recorded_one():
    assert sum(len(load.judged) for load in LOADS.values()) >= 24
    assert all(load.recorded not in load.judged for load in LOADS.values())


def test_six_loads_have_a_grid_and_the_quick_ones_need_nothing_special():
    assert len(GRID_LOADS) == 6
    assert {LOADS[name].fault.missing for name in QUICK_LOADS} == {anywhere}


@pytest.mark.parametrize("name", [name for name, load in LOADS.items() if load.fault.missing is anywhere])
def test_a_load_gives_batches_of_its_own_size_with_the_settings_asked_for(name, tmp_path):
    load = LOADS[name]
    with load.open(tmp_path, WorkerSettings(2, 4)) as loader:
        assert isinstance(loader, DataLoader)
        assert (loader.num_workers, loader.prefetch_factor, loader.batch_size) == (2, 4, load.batch_size)
    with load.open(tmp_path, WorkerSettings()) as loader:
        assert len(next(iter(loader))) == load.batch_size


def test_measuring_gives_samples_per_second(tmp_path):
    assert measured("tiny samples", WorkerSettings(), tmp_path, 0.05) > 100
