"""Intervals of gains hold what the next run will show: the model's error and the variation between runs are in them."""

from math import log

import pytest
from tests.support.simulated_recordings import TorchRun

from penstock.diagnose.gains import MODEL_ERROR, RUN_VARIATION
from penstock.diagnose.verdict import diagnose

RUN = TorchRun(workers=1, cpu_s=0.05, step_s=0.01)
"""A run whose batches all cost the same, so that the bootstrap finds no variation in it."""


def width(finding):
    return (log(1 + finding.gain) - log(1 + finding.gain_low)) / 1.96


def test_a_run_without_any_variation_has_the_interval_of_model_and_runs():
    finding = diagnose(RUN.recording()).findings[0]
    assert width(finding) == pytest.approx((MODEL_ERROR**2 + RUN_VARIATION**2) ** 0.5, rel=0.05)


def test_the_error_of_earlier_predictions_takes_the_place_of_the_stated_one():
    known = diagnose(RUN.recording(), model_error=0.2).findings[0]
    assert width(known) == pytest.approx((0.2**2 + RUN_VARIATION**2) ** 0.5, rel=0.05)
    assert known.gain == diagnose(RUN.recording()).findings[0].gain


def test_small_gains_have_small_errors_of_the_model():
    finding = diagnose(TorchRun(phases={"forward": 0.018, "log": 0.0015}).recording()).findings[0]
    assert finding.gain == pytest.approx(0.08, abs=0.01)
    assert RUN_VARIATION < width(finding) < 1.5 * RUN_VARIATION
