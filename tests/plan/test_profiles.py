"""The number of workers that each profile chooses, and the cost of starting them."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.plan.profiles import profile_goal, smallest_within
from penstock.plan.scenario import WorkerStartCost, rate_with_start, spawns_by_default
from penstock.plan.worker_count import candidate_counts


def saturating(number):
    """Return a rate that rises to 10 at ten workers and then stays, but for 0.02 more from 40 on."""
    return min(10.0, float(number)) + (0.02 if number >= 40 else 0.0)


def test_the_smallest_number_within_the_tolerance_of_the_best_is_chosen():
    assert smallest_within(saturating, candidate_counts(64), 0.03) == 10


def test_profiles_differ_in_the_rate_that_they_give_up():
    def slowly_rising(number):
        return number / (number + 1)

    names = ("speed", "balanced", "memory")
    chosen = {
        name: smallest_within(slowly_rising, candidate_counts(100), profile_goal(name).rate_tolerance) for name in names
    }
    assert chosen["speed"] > chosen["balanced"] > chosen["memory"]
    assert slowly_rising(chosen["memory"]) >= 0.9 * slowly_rising(100)
    assert slowly_rising(chosen["balanced"]) >= 0.97 * slowly_rising(100)
    assert slowly_rising(chosen["speed"]) >= 0.995 * slowly_rising(100)


def test_numbers_between_the_candidates_count_unless_refine_is_off():
    assert smallest_within(saturating, (2, 16), 0.03) == 10
    assert smallest_within(saturating, (2, 16), 0.03, refine=False) == 16


def test_a_falling_rate_chooses_the_smallest_number():
    assert smallest_within(lambda number: 10.0 - number, candidate_counts(8), 0.03) == 0


def test_infinite_rates_choose_the_smallest_number():
    assert smallest_within(lambda number: inf, candidate_counts(8), 0.03) == 0


def test_no_candidates_are_refused():
    with pytest.raises(SettingError):
        smallest_within(float, (), 0.03)


@given(st.integers(0, 300), st.sampled_from([0.005, 0.03, 0.1]))
def test_the_choice_is_within_the_tolerance_of_the_best(limit, rate_tolerance):
    chosen = smallest_within(saturating, candidate_counts(limit), rate_tolerance)
    assert 0 <= chosen <= limit
    assert saturating(chosen) >= (1 - rate_tolerance) * max(map(saturating, range(limit + 1))) - 1e-9


def test_every_profile_leaves_memory_to_the_page_cache():
    shares = [profile_goal(name).memory_share for name in ("memory", "balanced", "speed")]
    assert shares == sorted(shares)
    assert all(0 < share < 1 for share in shares)
    assert profile_goal("memory").max_prefetch == 2
    assert profile_goal("memory").saves_memory
    assert not profile_goal("balanced").saves_memory


def test_an_unknown_profile_is_refused():
    with pytest.raises(SettingError, match="balanced, speed, memory"):
        profile_goal("fast")


def test_the_cost_of_a_start_is_the_first_wait_less_a_usual_wait_and_a_batch():
    start = WorkerStartCost.measured(first_wait_s=9.0, usual_wait_s=0.5, batch_s=0.5, workers=4)
    assert start.seconds(8) == 16.0
    assert WorkerStartCost.measured(0.1, 0.5, 0.5, 4).seconds(8) == 0.0
    assert WorkerStartCost.measured(1.0, 0.0, 0.0, 0).seconds(8) == 0.0


def test_the_start_is_spread_over_the_batches_of_an_epoch():
    assert rate_with_start(10.0, 5.0, 100) == pytest.approx(100 / 15)
    assert rate_with_start(10.0, 0.0, 100) == 10.0
    assert rate_with_start(10.0, 5.0, None) == 10.0
    assert rate_with_start(inf, 5.0, 100) == 20.0


@pytest.mark.parametrize(
    ("platform", "spawns"), [("Linux 6.1 x86_64", False), ("Windows 11 AMD64", True), ("Darwin 23 arm64", True)]
)
def test_windows_and_macos_spawn_workers_by_default(platform, spawns):
    assert spawns_by_default(platform) is spawns
