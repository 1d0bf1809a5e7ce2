"""What a loop's waits say of both sides, on a clock of our own."""

import pytest

from penstock.data.device.gpu_decode.decode_split import COUNTED, SETTLING, SplitController
from penstock.data.fields.gpu_image import SharedFraction
from penstock.testing import FakeClock


class Noting:
    """Keeps the windows that it is shown, and turns when it is told to."""

    def __init__(self, share=0.5, after=None):
        self.share, self.after = share, after
        self.windows = []

    def seen(self, window):
        self.windows.append(window)
        if self.after is not None:
            self.share = self.after


@pytest.fixture
def clock():
    return FakeClock()


def batches(balance, clock, count, cores_s=0.0, card_s=0.0, step_s=0.1, stalled=lambda: 0.0, ahead=False):
    for _ in range(count):
        balance.asked()
        clock.sleep(cores_s)
        balance.sent(ahead=ahead)
        clock.sleep(card_s)
        balance.received(card_s, stalled)
        clock.sleep(step_s)


def test_a_window_says_for_whom_the_loop_waited_and_how_long(clock):
    noting = Noting()
    balance = SplitController([(SharedFraction(0.5), noting)], clock)
    batches(balance, clock, SETTLING + 1)
    batches(balance, clock, 10, cores_s=0.1)
    batches(balance, clock, 5, card_s=0.1)
    (window,) = noting.windows
    assert window.cores == pytest.approx(0.9 / 2.9, rel=0.05)  # without the longest
    assert window.card == pytest.approx(0.4 / 2.9, rel=0.05)
    assert window.way == 1


def test_the_first_batch_of_a_pass_is_waited_for_by_everybody(clock):
    noting = Noting()
    balance = SplitController([(SharedFraction(0.5), noting)], clock)
    batches(balance, clock, SETTLING + 3)
    batches(balance, clock, 1, cores_s=5.0)
    batches(balance, clock, COUNTED - 4)
    assert noting.windows[0].way == 0


def test_nobody_is_judged_while_workers_are_still_starting(clock):
    noting = Noting()
    balance = SplitController([(SharedFraction(0.5), noting)], clock)
    starting = [True]
    balance.settled = lambda: not starting
    batches(balance, clock, 3 * (SETTLING + COUNTED), cores_s=5.0)
    assert noting.windows == []
    starting.clear()
    batches(balance, clock, SETTLING)
    starting.append(True)  # some more are
    batches(balance, clock, 1)
    starting.clear()
    batches(balance, clock, SETTLING + COUNTED - 1)
    assert noting.windows == []
    batches(balance, clock, 1)
    assert [window.way for window in noting.windows] == [0]


def test_a_batch_that_came_ahead_of_the_loop_was_not_waited_for(clock):
    noting = Noting()
    balance = SplitController([(SharedFraction(0.5), noting)], clock)
    batches(balance, clock, SETTLING + COUNTED, cores_s=0.1, ahead=True)
    assert noting.windows[0].cores == 0


def test_one_that_sets_off_ahead_does_not_hide_that_the_one_before_was_late(clock):
    noting = Noting()
    balance = SplitController([(SharedFraction(0.5), noting)], clock)
    for _ in range(SETTLING + COUNTED):
        balance.asked()
        clock.sleep(0.1)
        balance.sent(ahead=False)
        balance.asked()
        balance.sent(ahead=True)
        balance.received(0.0, lambda: 0.0)
    assert noting.windows[0].cores == pytest.approx(1.0)


def test_the_workers_dial_is_turned_and_what_was_made_before_does_not_count(clock):
    noting, gpu_fraction = Noting(after=0.75), SharedFraction(0.5)
    balance = SplitController([(gpu_fraction, noting)], clock)
    batches(balance, clock, SETTLING + COUNTED)
    assert gpu_fraction.value == 0.75
    batches(balance, clock, SETTLING, cores_s=0.1)
    batches(balance, clock, COUNTED)
    assert [window.cores for window in noting.windows] == [0, 0]


def test_stalls_and_periods_are_the_window_s_own(clock):
    noting = Noting()
    balance = SplitController([(SharedFraction(0.5), noting)], clock)
    batches(balance, clock, SETTLING, stalled=lambda: 5.0)
    batches(balance, clock, COUNTED - 1, step_s=0.2, stalled=lambda: 5.4)
    clock.sleep(60)  # an evaluation
    batches(balance, clock, 1, stalled=lambda: 5.4)
    (window,) = noting.windows
    assert window.period_s == pytest.approx(0.2, abs=0.01)
    assert window.stalled == pytest.approx(0.4 / 62.9, rel=0.05)


def test_short_batches_are_looked_at_for_long_enough(clock):
    noting = Noting()
    balance = SplitController([(SharedFraction(0.5), noting)], clock)
    batches(balance, clock, SETTLING + 399, step_s=0.001)
    assert not noting.windows
    batches(balance, clock, 10, step_s=0.001)
    assert len(noting.windows) == 1
