from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.clock import Clock
from penstock.errors import SettingError
from penstock.testing import FakeClock


def wait_a_minute(clock: Clock) -> float:
    clock.sleep(60)
    return clock.now()


def test_only_sleeping_and_advancing_move_the_time():
    clock = FakeClock(start=100.0)
    assert clock.now() == clock.now() == 100.0
    assert wait_a_minute(clock) == 160.0
    clock.advance(0.5)
    assert clock.now() == 160.5


def test_time_cannot_move_backwards():
    clock = FakeClock()
    for seconds in (-1.0, math.nan, math.inf):
        with pytest.raises(SettingError, match="time cannot move"):
            clock.sleep(seconds)
        with pytest.raises(SettingError, match="time cannot move"):
            clock.advance(seconds)
    assert clock.now() == 0.0


def test_sleeps_of_many_threads_all_count():
    clock = FakeClock()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(clock.sleep, [0.25] * 4000))
    assert clock.now() == 1000.0


def test_the_repr_has_the_time_and_the_sleeps():
    clock = FakeClock(start=10.0)
    clock.sleep(2)
    clock.sleep(1.5)
    clock.advance(6.5)
    assert repr(clock) == "<FakeClock at 20 s: 10 s passed, slept 2×>"
