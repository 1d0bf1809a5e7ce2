from math import ceil

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.workload import Workload
from penstock.tuner.result import Setting
from penstock.tuner.search import choose, knee, model_guess, model_rate, next_workers, plain, variants

MOST = 64


def search(curve, guess, most=MOST, give_away=0.03):
    """Measure what is asked for until nothing is; the numbers in the order of asking."""
    measured = {}
    while (workers := next_workers(measured, guess, most, give_away)) is not None:
        assert workers not in measured
        assert 1 <= workers <= most
        measured[workers] = curve(workers)
    return measured


def workload(*, cpu_s=0.0, latency_s=0.0, step_s=0.0, cores=4.0, count=60, **fields):
    return Workload(
        workers=1,
        prefetch=2,
        in_order=True,
        cores=cores,
        cpu_s=np.resize(np.asarray(cpu_s, float), count),
        latency_s=np.resize(np.asarray(latency_s, float), count),
        receive_s=np.zeros(1),
        step_s=np.full(1, step_s),
        worker=np.zeros(count, np.int64),
        **fields,
    )


def test_the_model_guess_is_measured_first():
    assert next_workers({}, 6, MOST, 0.03) == 6
    assert next_workers({0: 10.0}, 6, 4, 0.03) == 4


@pytest.mark.parametrize("guess", [1, 3, 4, 8, 40, 64])
def test_a_rising_rate_that_saturates_is_answered_with_the_smallest_that_saturates(guess):
    measured = search(lambda workers: min(workers, 4) * 10.0, guess)
    assert knee(measured, 0.03) == 4
    assert len(measured) <= 11


@pytest.mark.parametrize("guess", [1, 2, 16, 64])
def test_a_thrashing_disk_is_left_for_few_workers(guess):
    measured = search(lambda workers: 100.0 / (1 + 0.2 * max(0, workers - 2)) * min(1, workers / 2), guess)
    assert knee(measured, 0.03) == 2
    assert len(measured) <= 9


def test_on_a_plateau_noise_does_not_lead_upwards():
    rates = {2: 100.0, 3: 101.0, 1: 55.0}
    measured = search(lambda workers: rates.get(workers, 101.5), 2)
    assert max(measured) <= 5
    assert knee(measured, 0.03) == 2


def test_a_good_guess_needs_few_measurements():
    assert len(search(lambda workers: min(workers, 8), 8)) <= 5


def test_numbers_at_which_everything_fails_end_the_search():
    assert set(search(lambda workers: 0.0, 8)) >= {8, 1}


@given(
    peak=st.integers(1, MOST),
    decline=st.floats(0, 0.3),
    guess=st.integers(1, MOST),
    most=st.integers(1, MOST),
)
@example(peak=58, decline=0.0546875, guess=20, most=63)  # as good at 45 as at 63, and better between
def test_the_peak_of_any_curve_that_has_one_is_nearly_reached_in_few_measurements(peak, decline, guess, most):
    def curve(workers):
        return min(workers, peak) / (1 + decline * max(0, workers - peak))

    measured = search(curve, guess, most)
    chosen = curve(knee(measured, 0.03))
    assert chosen >= 0.8 * max(curve(workers) for workers in range(1, most + 1))
    assert len(measured) <= 16


def test_the_guess_for_computing_workers_is_the_number_of_cores():
    assert model_guess(workload(cpu_s=0.01, cores=4.0), MOST, 0.03) == 4


def test_the_guess_for_waiting_workers_is_as_many_as_cover_the_step():
    assert model_guess(workload(latency_s=0.1, step_s=0.01, cores=2.0), MOST, 0.03) == pytest.approx(
        ceil(0.1 / 0.01), 1
    )


def test_the_guess_is_one_at_least_even_where_the_step_sets_the_pace():
    assert model_guess(workload(cpu_s=0.001, step_s=1.0), MOST, 0.03) == 1


def test_even_batches_ask_for_neither_depth_nor_disorder():
    assert variants(workload(latency_s=0.02, step_s=0.01), Setting(2)) == ()
    assert variants(workload(latency_s=0.02), Setting()) == ()


def test_uneven_batches_ask_for_depth():
    uneven = workload(latency_s=[0.004] * 12 + [0.08], step_s=0.008, count=130)
    found = variants(uneven, Setting(4))
    assert any(setting.prefetch > 2 for setting in found)
    assert all(model_rate(uneven, setting) > 1.03 * model_rate(uneven, Setting(4)) for setting in found)
    assert all(setting.prefetch == 2 for setting in variants(uneven, Setting(4), deeper=False))
    assert all(setting.in_order for setting in variants(uneven, Setting(4), loose=False))


def test_the_fewest_workers_within_what_may_be_given_away_are_chosen():
    rates = {Setting(): 10.0, Setting(2): 50.0, Setting(4): 98.0, Setting(6): 100.0}
    assert choose(rates, 0.03, step_known=True) == Setting(4)
    assert choose(rates, 0.005, step_known=True) == Setting(6)


def test_order_is_given_up_last():
    rates = {Setting(4): 80.0, Setting(4, 8): 98.0, Setting(4, in_order=False): 100.0}
    assert choose(rates, 0.03, step_known=True) == Setting(4, 8)


def test_no_workers_beside_a_measured_step_are_the_cheapest_of_all():
    rates = {Setting(): 99.0, Setting(2): 100.0}
    assert choose(rates, 0.03, step_known=True) == Setting()


def test_without_a_step_no_workers_are_chosen_only_if_all_others_are_slower():
    assert choose({Setting(): 99.0, Setting(2): 100.0}, 0.03, step_known=False) == Setting(2)
    assert choose({Setting(): 101.0, Setting(2): 100.0}, 0.03, step_known=False) == Setting()


@given(
    rates=st.dictionaries(st.integers(0, 8).map(Setting), st.floats(1, 1000), min_size=1),
    step_known=st.booleans(),
)
def test_the_choice_is_never_slower_than_torchs_defaults(rates, step_known):
    chosen = choose(rates, 0.03, step_known=step_known)
    assert rates[chosen] >= min(rates.get(Setting(), 0.0), max(rates.values()))


def test_plain_settings_are_known_by_their_number_of_workers():
    assert plain({Setting(2): 1.0, Setting(2, 8): 2.0, Setting(3, in_order=False): 3.0}) == {2: 1.0}
