"""Now and then."""

import pytest

from penstock.errors import SettingError
from penstock.testing.clock import FakeClock
from penstock.train import Every, Throttle


def test_every_third_call_from_the_first_on():
    every = Every(3)
    assert [every() for _ in range(7)] == [True, False, False, True, False, False, True]


def test_a_throttle_lets_one_through_in_so_many_seconds():
    clock = FakeClock()
    throttle = Throttle(2.0, clock)
    said = []
    for _ in range(6):
        said.append(throttle())
        clock.advance(0.9)
    assert said == [True, False, False, True, False, False]


@pytest.mark.parametrize(("kind", "value"), [(Every, 0), (Every, 1.5), (Throttle, 0), (Throttle, float("nan"))])
def test_what_makes_no_pace_is_refused(kind, value):
    with pytest.raises(SettingError):
        kind(value)
