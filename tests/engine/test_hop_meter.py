"""Sums of time, with times the test chooses."""

from penstock.core.hops import Hop
from penstock.engine.hop_meter import HopMeter, HopState


def test_every_second_of_everybody_is_busy_starved_or_blocked():
    meter = HopMeter("read")
    meter.note(10.0, HopState(busy=3, idle=1, why="starved"))
    meter.note(12.0, HopState(busy=1, idle=3, why="blocked"))
    assert meter.hop(13.0) == Hop("read", busy_s=7.0, starved_s=2.0, blocked_s=3.0)


def test_looking_does_not_change_the_sums():
    meter = HopMeter("read")
    meter.note(0.0, HopState(1, 0, "starved"))
    assert meter.hop(1.0) == meter.hop(1.0)
    assert meter.hop(2.0).busy_s == 2.0


def test_time_with_nothing_to_do_counts_for_nothing():
    meter = HopMeter("decode")
    meter.note(0.0, HopState(2, 0, "starved"))
    meter.note(1.0, None)
    meter.note(100.0, HopState(2, 0, "starved"))
    assert meter.hop(101.0) == Hop("decode", busy_s=4.0)


def test_a_window_is_the_difference_of_two_looks():
    early, late = Hop("read", 1.0, 2.0, 3.0), Hop("read", 2.0, 4.0, 4.0)
    window = late.since(early)
    assert (window.busy, window.starved, window.blocked) == (0.25, 0.5, 0.25)
    assert str(window) == "read busy 25% starved 50% blocked 25%"


def test_a_hop_that_had_no_time_has_no_shares():
    assert (Hop("x").busy, Hop("x").starved, Hop("x").blocked) == (0.0, 0.0, 0.0)
