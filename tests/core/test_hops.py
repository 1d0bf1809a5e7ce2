"""Time of a hop, at times that the test chooses."""

from penstock.core.hops import Hop, HopMeter, HopState


def test_every_second_of_every_worker_is_busy_starved_or_blocked():
    meter = HopMeter("read")
    meter.update(10.0, HopState(busy=3, idle=1, reason="starved"))
    meter.update(12.0, HopState(busy=1, idle=3, reason="blocked"))
    assert meter.hop(13.0) == Hop("read", busy_s=7.0, starved_s=2.0, blocked_s=3.0)


def test_reading_the_sums_does_not_change_them():
    meter = HopMeter("read")
    meter.update(0.0, HopState(1, 0, "starved"))
    assert meter.hop(1.0) == meter.hop(1.0)
    assert meter.hop(2.0).busy_s == 2.0


def test_time_without_work_is_not_counted():
    meter = HopMeter("decode")
    meter.update(0.0, HopState(2, 0, "starved"))
    meter.update(1.0, None)
    meter.update(100.0, HopState(2, 0, "starved"))
    assert meter.hop(101.0) == Hop("decode", busy_s=4.0)


def test_the_difference_of_two_measurements_is_a_window():
    early, late = Hop("read", 1.0, 2.0, 3.0), Hop("read", 2.0, 4.0, 4.0)
    window = late.since(early)
    assert (window.busy, window.starved, window.blocked) == (0.25, 0.5, 0.25)
    assert str(window) == "read busy 25% starved 50% blocked 25%"


def test_a_hop_without_time_has_fractions_of_zero():
    assert (Hop("x").busy, Hop("x").starved, Hop("x").blocked) == (0.0, 0.0, 0.0)
