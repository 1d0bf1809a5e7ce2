"""What profiles choose, and what a start costs."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.plan.profiles import profile_goal, smallest_within
from penstock.plan.scenario import WorkerStartCost, rate_with_start, spawns_by_default
from penstock.plan.worker_count import candidate_counts


def saturating(number):
    """Rises to 10 at ten workers, then stays; a trifle more from 40 on."""
    return min(10.0, float(number)) + (0.02 if number >= 40 else 0.0)


def test_the_smallest_number_as_good_as_the_best_is_taken():
    assert smallest_within(saturating, candidate_counts(64), 0.03) == 10


def test_profiles_differ_in_what_they_give_away():
    def slowly(number):
        return number / (number + 1)

    names = ("speed", "balanced", "memory")
    chosen = {name: smallest_within(slowly, candidate_counts(100), profile_goal(name).rate_tolerance) for name in names}
    assert chosen["speed"] > chosen["balanced"] > chosen["memory"]
    assert slowly(chosen["memory"]) >= 0.9 * slowly(100)
    assert slowly(chosen["balanced"]) >= 0.97 * slowly(100)
    assert slowly(chosen["speed"]) >= 0.995 * slowly(100)


def test_numbers_between_those_given_count_only_where_asked():
    assert smallest_within(saturating, (2, 16), 0.03) == 10
    assert smallest_within(saturating, (2, 16), 0.03, refine=False) == 16


def test_a_rate_that_falls_with_more_leaves_the_fewest():
    assert smallest_within(lambda number: 10.0 - number, candidate_counts(8), 0.03) == 0


def test_rates_without_end_leave_the_fewest():
    assert smallest_within(lambda number: inf, candidate_counts(8), 0.03) == 0


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(SettingError):
        smallest_within(float, (), 0.03)


@given(st.integers(0, 300), st.sampled_from([0.005, 0.03, 0.1]))
def test_the_choice_is_within_reach_of_the_best(most, rate_tolerance):
    chosen = smallest_within(saturating, candidate_counts(most), rate_tolerance)
    assert 0 <= chosen <= most
    assert saturating(chosen) >= (1 - rate_tolerance) * max(map(saturating, range(most + 1))) - 1e-9


@given(st.integers(0, 1000))
def test_counts_hold_the_first_and_the_most_and_rise(most):
    found = candidate_counts(most)
    assert (found[0], found[-1]) == (0, most)
    assert list(found) == sorted(set(found))
    assert all(later <= earlier * 5 / 4 + 1 for earlier, later in pairwise(found))


def test_memory_is_shared_with_the_page_cache():
    shares = [profile_goal(name).memory_share for name in ("memory", "balanced", "speed")]
    assert shares == sorted(shares)
    assert all(0 < share < 1 for share in shares)
    assert profile_goal("memory").max_prefetch == 2
    assert profile_goal("memory").saves_memory
    assert not profile_goal("balanced").saves_memory


def test_a_profile_of_another_name_is_refused():
    with pytest.raises(SettingError, match="balanced, speed, memory"):
        profile_goal("fast")


def test_a_start_is_what_the_first_wait_has_beyond_a_usual_one():
    start = WorkerStartCost.measured(first_wait_s=9.0, usual_wait_s=0.5, batch_s=0.5, workers=4)
    assert start.seconds(8) == 16.0
    assert WorkerStartCost.measured(0.1, 0.5, 0.5, 4).seconds(8) == 0.0
    assert WorkerStartCost.measured(1.0, 0.0, 0.0, 0).seconds(8) == 0.0


def test_a_start_is_shared_out_over_the_epoch():
    assert rate_with_start(10.0, 5.0, 100) == pytest.approx(100 / 15)
    assert rate_with_start(10.0, 0.0, 100) == 10.0
    assert rate_with_start(10.0, 5.0, None) == 10.0
    assert rate_with_start(inf, 5.0, 100) == 20.0


@pytest.mark.parametrize(
    ("platform", "new"), [("Linux 6.1 x86_64", False), ("Windows 11 AMD64", True), ("Darwin 23 arm64", True)]
)
def test_which_systems_start_new_interpreters(platform, new):
    assert spawns_by_default(platform) is new
