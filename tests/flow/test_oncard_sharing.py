"""Who decodes how many, on machines that exist on paper: each window says what such a machine would show."""

import pytest

from penstock.flow.oncard.sharing import FIRST_REST, HELD, STALLED, Auto, Fixed, Hybrid, Window


class Machine:
    """Rates in batches per second; the step is slower the more the card decodes."""

    def __init__(self, cores, card, step_s=0.0, slower=0.0):
        self.cores, self.card, self.step_s, self.slower = cores, card, step_s, slower

    def window(self, share):
        cores_s, card_s = (1 - share) / self.cores, share / self.card
        step_s = self.step_s * (1 + self.slower * share)
        period_s = max(cores_s, card_s, step_s)
        for_cores = period_s - max(card_s, step_s)  # the card begins when the cores are done
        return Window(for_cores / period_s, (card_s - step_s) / period_s, period_s, (period_s - step_s) / period_s)

    def run(self, sharing, windows):
        shares = []
        for _ in range(windows):
            sharing.seen(self.window(sharing.share))
            shares.append(sharing.share)
        return shares


@pytest.mark.parametrize(("cores", "card"), [(100, 100), (1300, 3400), (3000, 600)])
@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_both_sides_come_to_finish_together_wherever_they_began(cores, card, start):
    shares = Machine(cores, card).run(Hybrid(start), 60)
    assert all(abs(share - card / (card + cores)) <= 0.06 for share in shares[20:])


def test_what_was_moved_to_the_card_stays_there_for_a_while():
    sharing = Hybrid(0.5)
    sharing.seen(Window(0.5, 0.2, 0.1, 0.0))
    moved = sharing.share
    shares = []
    for _ in range(HELD + 1):
        sharing.seen(Window(0.0, 0.9, 0.1, 0.0))
        shares.append(sharing.share)
    assert shares[:HELD] == [moved] * HELD
    assert 0.5 < shares[HELD] < moved


def test_a_share_follows_when_one_side_becomes_slower():
    sharing = Hybrid(0.7)
    Machine(1300, 3400).run(sharing, 20)
    shares = Machine(1300, 400).run(sharing, 60)
    assert all(abs(share - 400 / 1700) <= 0.06 for share in shares[20:])


def test_where_the_loop_waits_for_nobody_nothing_is_moved():
    assert set(Machine(1000, 1000, step_s=1.0).run(Hybrid(0.4), 10)) == {0.4}


def test_a_wait_now_and_then_moves_nothing():
    sharing = Hybrid(0.4)
    sharing.seen(Window(0.04, 0.02, 0.1, 0.0))
    assert sharing.share == 0.4


def test_where_both_are_waited_for_the_cores_do_all_they_can():
    assert Window(0.3, 0.6, 0.1, 0.0).way == 1


def test_auto_leaves_everything_to_cores_that_keep_up():
    assert set(Machine(100, 100, step_s=0.02).run(Auto(0.5), 20)) == {0.0}


def test_auto_takes_the_card_where_the_training_waits_for_the_cores_and_no_more_than_that_needs():
    machine = Machine(10, 100, step_s=0.08, slower=0.1)
    shares = machine.run(Auto(0.5), 10)
    assert machine.window(shares[-1]).stalled < STALLED
    assert 0.1 <= shares[-1] <= 0.3


def test_auto_never_gives_the_card_more_than_it_may():
    assert max(Machine(1, 100, step_s=0.01).run(Auto(0.5), 30)) == 0.5


def test_auto_goes_back_where_the_step_became_slower_than_the_stall_it_removed():
    machine = Machine(10, 100, step_s=0.09, slower=4.0)
    shares = machine.run(Auto(0.5), 64)
    assert shares[:2] == [0.1, 0.0]
    assert shares[2 : 2 + FIRST_REST] == [0.0] * FIRST_REST
    assert 2 <= sum(share > 0 for share in shares) <= 4  # it asks again, less and less often


def test_auto_gives_back_what_the_training_no_longer_waits_for():
    sharing = Auto(0.5)
    Machine(10, 100, step_s=0.08).run(sharing, 6)
    assert sharing.share > 0
    assert Machine(100, 100, step_s=0.08).run(sharing, 300)[-1] == 0.0


def test_auto_gives_back_where_the_card_is_late_itself():
    sharing = Auto(0.5)
    Machine(10, 100, step_s=0.02).run(sharing, 8)
    before = sharing.share
    Machine(100, 1, step_s=0.02).run(sharing, FIRST_REST * 4)
    assert sharing.share < before


def test_what_is_fixed_stays():
    assert set(Machine(1, 100).run(Fixed(1.0), 3)) == {1.0}
