"""Predictions from a recording, compared with measured rates."""

from dataclasses import replace

import pytest
from benchmarks.plan.loads import LOADS
from benchmarks.plan.predict import Comparison, compare
from benchmarks.plan.times import QUICK

from penstock.tuner.result import WorkerSettings

FIELDS = {"load": "a", "recorded": WorkerSettings(2), "setting": WorkerSettings(4), "bottleneck": "cpu (laws)"}


@pytest.mark.parametrize(("predicted", "near"), [(116, False), (114, True), (86, True), (84, False)])
def test_a_prediction_is_near_within_15_percent_of_the_measured_rate(predicted, near):
    comparison = Comparison(**FIELDS, predicted=predicted, measured=100)
    assert comparison.error == pytest.approx(predicted / 100 - 1)
    assert comparison.near is near


@pytest.mark.bench
def test_a_load_is_recorded_once_and_compared_with_other_settings(tmp_path):
    load = replace(LOADS["a wait per sample"], predicted=(WorkerSettings(), WorkerSettings(4)))
    no_workers, four_workers = compare(load, tmp_path, replace(QUICK, record_s=1.0))
    assert (no_workers.setting, four_workers.setting) == (WorkerSettings(), WorkerSettings(4))
    assert no_workers.recorded == WorkerSettings(2)
    assert four_workers.predicted > 2 * no_workers.predicted
    assert four_workers.measured > no_workers.measured
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["a-wait-per-sample.jsonl"]
