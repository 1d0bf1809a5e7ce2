"""The comparison of tuned settings with a grid: on invented rates, and once on a real load."""

from dataclasses import replace

import pytest
from benchmarks.plan.grid import DEFAULT, GRID, REPORTED, GridResult, finalists, measure_grid, run, setting_of
from benchmarks.plan.loads import LOADS
from benchmarks.plan.times import FULL, QUICK

from penstock.tuner.result import TuningFindings, WorkerSettings


def findings(**kwargs):
    return TuningFindings(kwargs=kwargs, samples_s=1.0, default_samples_s=None, measured=(), reasons=(), seconds=20.0)


def grid_result(tuned, **rates):
    """Return the result for rates by setting, where `_4_2` is 4 workers with a prefetch factor of 2."""
    counted = {WorkerSettings(*map(int, name[1:].split("_"))): figures for name, figures in rates.items()}
    return GridResult(load="a", tuned=tuned, tune_s=20.0, grid=tuple(counted), screened={}, counted=counted)


def test_the_grid_has_torchs_default_and_twelve_settings_with_workers():
    assert len(GRID) == 13
    assert DEFAULT in GRID


def test_finalists_are_the_named_settings_the_best_and_the_near_best_of_each_number_of_workers():
    screened = {
        DEFAULT: 10,
        WorkerSettings(1, 2): 91,
        WorkerSettings(1, 4): 92,
        WorkerSettings(2, 2): 99,
        WorkerSettings(2, 4): 98,
    }
    screened |= {WorkerSettings(4, 2): 100, WorkerSettings(4, 4): 97, WorkerSettings(8, 2): 80}
    assert finalists(screened, (WorkerSettings(5),)) == [
        WorkerSettings(1, 4),
        WorkerSettings(2, 2),
        WorkerSettings(2, 4),
        WorkerSettings(4, 2),
        WorkerSettings(5),
    ]


def test_every_setting_of_the_grid_is_screened_once_and_the_finalists_run_in_turns():
    calls = []

    def rate(seconds, setting):
        calls.append((seconds, setting))
        return 1.0 + setting.workers

    found = measure_grid("a", findings(num_workers=8, prefetch_factor=2), GRID, REPORTED, FULL, rate)
    assert [setting for seconds, setting in calls if seconds == FULL.screen_s] == list(GRID)
    rounds = [setting for seconds, setting in calls if seconds == FULL.measure_s]
    assert {*REPORTED, WorkerSettings(8)} <= set(rounds)
    assert len(rounds) == FULL.rounds * len(found.counted)
    assert rounds[0] != rounds[len(found.counted)]
    assert found.tuned == WorkerSettings(8)


def test_tuned_is_compared_with_the_best_by_the_median_of_the_ratios_of_the_rounds():
    found = grid_result(WorkerSettings(2), _0_2=[50, 50, 50], _2_2=[90, 100, 80], _4_2=[100, 100, 100])
    assert found.best == WorkerSettings(4)
    assert found.of_best == pytest.approx(0.9)
    assert found.of_default == pytest.approx(1.8)


def test_a_setting_outside_the_grid_is_never_its_best():
    found = grid_result(WorkerSettings(2), _0_2=[50], _2_2=[90])
    found = GridResult(**{**vars(found), "grid": (DEFAULT,)})
    assert found.best == DEFAULT


def test_the_fewest_workers_are_within_three_percent_of_the_best():
    assert grid_result(WorkerSettings(2), _0_2=[50], _1_2=[96], _2_2=[98], _8_2=[100]).fewest == 2


def test_the_tuned_setting_is_that_of_the_keyword_arguments():
    assert setting_of(findings(num_workers=0)) == DEFAULT
    assert setting_of(findings(num_workers=3, prefetch_factor=8, persistent_workers=True)) == WorkerSettings(3, 8)
    assert setting_of(findings(num_workers=3, prefetch_factor=2, in_order=False)) == WorkerSettings(3, in_order=False)


@pytest.mark.bench
def test_a_real_load_is_tuned_and_its_grid_measured(tmp_path):
    found = run(LOADS["a wait per sample"], tmp_path, replace(QUICK, tune_s=2.0), quick=True)
    assert {found.tuned, DEFAULT} <= found.counted.keys()
    assert all(rate > 0 for rate in found.rates.values())
