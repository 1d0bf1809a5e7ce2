"""From a recording to a judgement."""

from dataclasses import replace

import pytest
from benchmarks.plan.loads import LOADS
from benchmarks.plan.predict import Judged, judge
from benchmarks.plan.times import QUICK

from penstock.tuner.result import WorkerSettings

SAID = {"load": "a", "recorded": WorkerSettings(2), "setting": WorkerSettings(4), "binds": "cpu (laws)"}


@pytest.mark.parametrize(("predicted", "near"), [(116, False), (114, True), (86, True), (84, False)])
def test_a_prediction_is_near_within_15_percent_of_what_was_measured(predicted, near):
    found = Judged(**SAID, predicted=predicted, measured=100)
    assert found.error == pytest.approx(predicted / 100 - 1)
    assert found.near is near


@pytest.mark.bench
def test_one_load_is_recorded_once_and_judged_with_other_settings(tmp_path):
    load = replace(LOADS["a wait per sample"], judged=(WorkerSettings(), WorkerSettings(4)))
    none, four = judge(load, tmp_path, replace(QUICK, record_s=1.0))
    assert (none.setting, four.setting) == (WorkerSettings(), WorkerSettings(4))
    assert none.recorded == WorkerSettings(2)
    assert four.predicted > 2 * none.predicted
    assert four.measured > none.measured
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["a-wait-per-sample.jsonl"]
