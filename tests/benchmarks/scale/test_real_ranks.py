"""Real ranks with a sleeping load: the samples that they get and the prediction, but no durations."""

import pytest

pytest.importorskip("torch")

from benchmarks.scale.compare import Comparison, predict, record_need
from benchmarks.scale.real_ranks import RanksRun, run_ranks
from benchmarks.scale.sleeping_loads import BATCH, SAMPLE_BYTES, SHARED, SleepingLoad

QUICK = SleepingLoad(name="quick", store_s=0.001, step_s=0.001)


def test_ranks_divide_all_samples_and_nodes_find_some_in_their_caches(tmp_path):
    run = RanksRun(load=QUICK, folder=tmp_path, nodes=2, epochs=2, steps=16, cached=True)
    first, second = run_ranks(run)
    for epoch in (first, second):
        assert sorted(epoch.sample_numbers) == list(range(run.samples))
        assert epoch.samples_s > 0
    assert first.hits == 0
    assert 0.25 < second.hits < 0.75


def test_the_recording_of_one_rank_predicts_the_rate_of_many(tmp_path):
    need = record_need(QUICK, tmp_path, steps=40)
    assert need.samples_per_batch == BATCH
    assert need.batch_bytes == pytest.approx(BATCH * SAMPLE_BYTES, rel=0.05)
    assert need.step_s.mean() >= QUICK.step_s
    many = predict(need, QUICK, ranks_per_node=64)
    assert {each.name: each.samples_s for each in many.limits}["store_bandwidth"] == pytest.approx(1000, rel=0.05)
    assert many.samples_s <= many.limits[0].samples_s


def test_uneven_steps_differ_between_ranks_and_are_the_same_in_every_run():
    uneven = SleepingLoad(name="uneven", uneven_s=0.01)
    assert uneven.step_duration_s(0, 0, 1) == uneven.step_duration_s(0, 0, 1) != uneven.step_duration_s(1, 0, 1)
    assert SHARED.step_duration_s(0, 0, 1) == SHARED.step_s


@pytest.mark.parametrize(("predicted", "near"), [(116, False), (114, True), (86, True), (84, False)])
def test_a_prediction_within_15_percent_of_the_measured_rate_is_near(predicted, near):
    assert Comparison(load="a", ranks="8", predicted=predicted, measured=100, bound="").near is near
