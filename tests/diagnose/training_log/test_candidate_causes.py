"""The gain that candidate causes share."""

import pytest

from penstock.diagnose.training_log.candidate_causes import gain_without_waits


def test_the_gain_is_that_of_no_waiting():
    gain = gain_without_waits([4.0] * 3, [2.0] * 3)
    assert (gain.low, gain.middle, gain.high) == (pytest.approx(1), pytest.approx(1), pytest.approx(1))
