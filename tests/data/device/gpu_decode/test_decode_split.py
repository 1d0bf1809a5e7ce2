"""Who decodes how many, on machines that exist on paper: each window says what such a machine would show."""

import random
from dataclasses import replace
from statistics import mean

import pytest

from penstock.data.device.gpu_decode.decode_split import (
    FIRST_REST,
    QUIET,
    STALLED,
    AutoSplit,
    FixedSplit,
    HybridSplit,
    SplitWindow,
)


class Machine:
    """Rates in batches per second; the step is slower the more the card decodes, the card the busier the cores are."""

    def __init__(self, cores, card, step_s=0.0, slower=0.0, crowded=0.0):
        self.cores, self.card, self.step_s, self.slower, self.crowded = cores, card, step_s, slower, crowded

    def window(self, share):
        cores_s, card_s = (1 - share) / self.cores, share / self.card
        step_s = self.step_s * (1 + self.slower * share)
        alone_s, period_s = card_s, max(cores_s, card_s, step_s)
        for _ in range(50):  # busy cores make the period longer, and that makes them less busy
            card_s = alone_s * (1 + self.crowded * min(1.0, cores_s / period_s) ** 2)
            period_s = (period_s + max(cores_s, card_s, step_s)) / 2
        for_cores = max(0.0, period_s - max(card_s, step_s))  # the card begins when the cores are done
        return SplitWindow(for_cores / period_s, (card_s - step_s) / period_s, period_s, (period_s - step_s) / period_s)

    def best_s(self):
        return min(self.window(share / 100).period_s for share in range(101))

    def run(self, sharing, windows):
        shares = []
        for _ in range(windows):
            sharing.seen(self.window(sharing.share))
            shares.append(sharing.share)
        return shares


def share_of_best(machine, sharing, windows, noise=0.0, seed=0):
    """Of the batches that could have come."""
    dice, periods = random.Random(seed), []
    for _ in range(windows):
        window = machine.window(sharing.share)
        periods.append(window.period_s)
        sharing.seen(replace(window, period_s=window.period_s * dice.gauss(1, noise)))
    return machine.best_s() / mean(periods)


MACHINES = [
    Machine(100, 100),
    Machine(1300, 3400),
    Machine(3000, 600),
    Machine(9500, 22000, crowded=0.9),
    Machine(1200, 3000, crowded=1.5),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_batches_come_nearly_as_soon_as_they_could_wherever_it_began(machine, start):
    sharing = HybridSplit(start)
    share_of_best(machine, sharing, 14)
    assert share_of_best(machine, sharing, 60) > 0.95


@pytest.mark.parametrize("machine", MACHINES)
def test_chance_leads_nobody_far_astray(machine):
    found = []
    for seed in range(20):
        sharing = HybridSplit(0.4)
        share_of_best(machine, sharing, 20, 0.03, seed)
        found.append(share_of_best(machine, sharing, 100, 0.03, seed + 100))
    assert mean(found) > 0.95
    assert min(found) > 0.8


def test_a_step_that_brings_nothing_is_undone_and_the_next_goes_the_other_way_and_less_far():
    sharing, shares = HybridSplit(0.5), []
    for _ in range(4):
        sharing.seen(SplitWindow(0.5, 0.2, 0.1, 0.0))  # however it is turned, nothing changes
        shares.append(sharing.share)
    assert shares == pytest.approx([0.6, 0.5, 0.45, 0.5])


def test_when_no_step_brings_anything_it_is_left_alone_for_longer_and_longer():
    sharing, moved = HybridSplit(0.5), []
    for _ in range(200):
        before = sharing.share
        sharing.seen(SplitWindow(0.5, 0.2, 0.1, 0.0))
        moved.append(sharing.share != before)
    rests = [len(rest) for rest in "".join("x" if move else "." for move in moved).split("x") if len(rest) > 1]
    assert rests[:4] == [QUIET, 2 * QUIET, 4 * QUIET, 8 * QUIET]


def test_a_share_follows_when_one_side_becomes_slower():
    sharing = HybridSplit(0.7)
    share_of_best(Machine(1300, 3400), sharing, 40)
    share_of_best(Machine(1300, 400), sharing, 20)
    assert share_of_best(Machine(1300, 400), sharing, 40) > 0.95


def test_where_the_loop_waits_for_nobody_nothing_is_moved():
    assert set(Machine(1000, 1000, step_s=1.0).run(HybridSplit(0.4), 10)) == {0.4}


def test_a_wait_now_and_then_moves_nothing():
    sharing = HybridSplit(0.4)
    sharing.seen(SplitWindow(0.04, 0.02, 0.1, 0.0))
    assert sharing.share == 0.4


def test_where_both_are_waited_for_the_cores_do_all_they_can():
    assert SplitWindow(0.3, 0.6, 0.1, 0.0).way == 1


def test_auto_leaves_everything_to_cores_that_keep_up():
    assert set(Machine(100, 100, step_s=0.02).run(AutoSplit(0.5), 20)) == {0.0}


def test_auto_takes_the_card_where_the_training_waits_for_the_cores_and_no_more_than_that_needs():
    machine = Machine(10, 100, step_s=0.08, slower=0.1)
    shares = machine.run(AutoSplit(0.5), 10)
    assert machine.window(shares[-1]).stalled < STALLED
    assert 0.1 <= shares[-1] <= 0.3


def test_auto_never_gives_the_card_more_than_it_may():
    assert max(Machine(1, 100, step_s=0.01).run(AutoSplit(0.5), 30)) == 0.5


def test_auto_goes_back_where_the_step_became_slower_than_the_stall_it_removed():
    machine = Machine(10, 100, step_s=0.09, slower=4.0)
    shares = machine.run(AutoSplit(0.5), 64)
    assert shares[:2] == pytest.approx([0.1, 0.0])
    assert shares[2 : 2 + FIRST_REST] == [0.0] * FIRST_REST
    assert 2 <= sum(share > 0 for share in shares) <= 4  # it asks again, less and less often


def test_auto_moves_as_many_at_once_as_the_stall_is_long():
    assert Machine(1, 100, step_s=0.01).run(AutoSplit(0.5), 1) == [0.5]
    assert Machine(10, 100, step_s=0.07).run(AutoSplit(0.5), 1) == pytest.approx([0.3])


def test_auto_asks_for_half_as_much_after_a_try_in_vain():
    machine = Machine(10, 100, step_s=0.05, slower=3.0)
    shares = machine.run(AutoSplit(0.5), FIRST_REST + 3)
    assert shares == [0.5, 0.0, *[0.0] * FIRST_REST, 0.25]
    assert machine.window(0.25).period_s < machine.window(0.0).period_s < machine.window(0.5).period_s


@pytest.mark.parametrize("noise", [0.05, 0.15])
def test_chance_leads_auto_nowhere_in_the_end(noise):
    machine, found = Machine(10, 100, step_s=0.06, slower=0.1), []
    for seed in range(20):
        sharing = AutoSplit(0.5)
        share_of_best(machine, sharing, 20, noise, seed)
        found.append(share_of_best(machine, sharing, 100, noise, seed + 100))
    assert mean(found) > 0.93


def test_auto_gives_back_what_the_training_no_longer_waits_for():
    sharing = AutoSplit(0.5)
    Machine(10, 100, step_s=0.08).run(sharing, 6)
    assert sharing.share > 0
    assert Machine(100, 100, step_s=0.08).run(sharing, 300)[-1] == 0.0


def test_auto_gives_back_where_the_card_is_late_itself():
    sharing = AutoSplit(0.5)
    Machine(10, 100, step_s=0.02).run(sharing, 8)
    before = sharing.share
    Machine(100, 1, step_s=0.02).run(sharing, FIRST_REST * 4)
    assert sharing.share < before


def test_what_is_fixed_stays():
    assert set(Machine(1, 100).run(FixedSplit(1.0), 3)) == {1.0}
