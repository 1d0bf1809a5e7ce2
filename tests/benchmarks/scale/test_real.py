"""Real ranks of a toy load: what they had, not how long it took."""

import pytest

pytest.importorskip("torch")

from benchmarks.scale.judge import Judged, predicted, recorded
from benchmarks.scale.real import Course, run_ranks
from benchmarks.scale.toys import BATCH, SAMPLE_BYTES, SHARED, Toy

QUICK = Toy(name="quick", store_s=0.001, step_s=0.001)


def test_ranks_share_out_every_sample_and_a_node_meets_its_own_again(tmp_path):
    course = Course(toy=QUICK, folder=tmp_path, nodes=2, epochs=2, steps=16, cached=True)
    first, second = run_ranks(course)
    for ran in (first, second):
        assert sorted(ran.ids) == list(range(course.samples))
        assert ran.samples_s > 0
    assert first.hits == 0
    assert 0.25 < second.hits < 0.75


def test_one_rank_is_recorded_and_more_are_predicted_from_it(tmp_path):
    need = recorded(QUICK, tmp_path, steps=40)
    assert need.samples_per_batch == BATCH
    assert need.batch_bytes == pytest.approx(BATCH * SAMPLE_BYTES, rel=0.05)
    assert need.step_s.mean() >= QUICK.step_s
    many = predicted(need, QUICK, ranks_per_node=64)
    assert {each.name: each.samples_s for each in many.limits}["store_bandwidth"] == pytest.approx(1000, rel=0.05)
    assert many.samples_s <= many.limits[0].samples_s


def test_steps_of_other_ranks_are_other_steps_and_the_same_in_every_run():
    uneven = Toy(name="uneven", uneven_s=0.01)
    assert uneven.step_of(0, 0, 1) == uneven.step_of(0, 0, 1) != uneven.step_of(1, 0, 1)
    assert SHARED.step_of(0, 0, 1) == SHARED.step_s


@pytest.mark.parametrize(("predicted", "near"), [(116, False), (114, True), (86, True), (84, False)])
def test_near_is_within_15_percent_of_what_was_measured(predicted, near):
    assert Judged(load="a", ranks="8", predicted=predicted, measured=100, bound="").near is near
