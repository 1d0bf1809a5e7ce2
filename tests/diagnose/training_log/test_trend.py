"""Trends: steady series, changes and drifts."""

import random

import pytest

from penstock.diagnose.training_log.trend import find_trend


def test_noise_is_steady():
    rng = random.Random(2)
    for _ in range(200):
        assert find_trend([rng.gauss(10, 1.5) for _ in range(rng.randint(6, 60))]).kind == "steady"


def test_a_change_is_located():
    rng = random.Random(2)
    trend = find_trend([rng.gauss(1, 0.1) for _ in range(20)] + [rng.gauss(3, 0.1) for _ in range(10)])
    assert (trend.kind, trend.at) == ("changed", 20)
    assert (trend.before, trend.after) == (pytest.approx(1, abs=0.1), pytest.approx(3, abs=0.1))


def test_a_drift_is_not_a_change():
    trend = find_trend([1 + 0.1 * index for index in range(30)])
    assert (trend.kind, trend.before, trend.after) == ("drifted", pytest.approx(1), pytest.approx(3.9))


def test_one_outlier_is_not_a_change():
    assert find_trend([1.0] * 12 + [30.0] + [1.0] * 12).kind == "steady"


def test_five_numbers_have_no_trend():
    assert find_trend([1, 1, 1, 9, 9]) is None
