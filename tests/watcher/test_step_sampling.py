"""Which steps are looked at."""

import pytest

from penstock.watcher.step_sampling import BLOCK, LONG_S, OPENING, PATIENCE_S, YOUNG, StepSampling

SHORT_S = 0.01


def looked_at(choice, cycles_s):
    """The numbers of the steps of a pass that are looked at; `cycles_s` is from each step to the next."""
    now, unlooked, until, found = 1.0, 0, 0.0, []
    for number, cycle_s in enumerate(cycles_s):
        if unlooked:
            unlooked = unlooked - 1 if now < until else 0
        else:
            unlooked, until = choice.unlooked_after(number, now), now + PATIENCE_S
            found.append(number)
        now += cycle_s
    choice.ended(len(cycles_s))
    return found


def test_every_step_of_a_short_run_is_looked_at():
    assert looked_at(StepSampling(), [SHORT_S] * YOUNG) == list(range(YOUNG))


def test_of_short_steps_one_in_a_block_is_looked_at_and_not_always_the_same():
    found = looked_at(StepSampling(), [SHORT_S] * (YOUNG + 50 * BLOCK))[YOUNG:]
    assert [number // BLOCK for number in found] == list(range(YOUNG // BLOCK, YOUNG // BLOCK + 50))
    assert len({number % BLOCK for number in found}) > BLOCK // 2


@pytest.mark.parametrize("every", [8, 10, 16, 50, 100])
def test_what_happens_every_nth_step_is_met_about_as_often_as_it_happens(every):
    found = looked_at(StepSampling(), [SHORT_S] * (YOUNG + 1000 * BLOCK))[YOUNG:]
    assert sum(number % every == 0 for number in found) / len(found) == pytest.approx(1 / every, rel=0.5)


def test_long_steps_are_all_looked_at():
    assert looked_at(StepSampling(), [1.1 * LONG_S] * 500) == list(range(500))


def test_steps_that_become_long_are_all_looked_at_soon():
    found = looked_at(StepSampling(), [SHORT_S] * 200 + [0.4] * 100)
    late = 200 + BLOCK
    assert [number for number in found if number >= late] == list(range(late, 300))


def test_steps_that_become_short_are_let_pass_again():
    found = looked_at(StepSampling(), [0.1] * 100 + [SHORT_S] * 400)
    assert len([number for number in found if number >= 200]) == pytest.approx(300 / BLOCK, abs=1)


def test_one_long_step_among_short_ones_does_not_choose_its_neighbour():
    """Else an update after so many short steps would never be met itself."""
    cycles_s = [0.2 if number % 20 == 0 else SHORT_S for number in range(YOUNG + 400 * BLOCK)]
    found = looked_at(StepSampling(), cycles_s)[YOUNG:]
    assert sum(number % 20 == 0 for number in found) / len(found) == pytest.approx(1 / 20, rel=0.5)


def test_the_first_steps_of_every_pass_are_looked_at():
    choice = StepSampling()
    looked_at(choice, [SHORT_S] * 100)
    found = looked_at(choice, [SHORT_S] * 100)
    assert found[:OPENING] == list(range(OPENING))
    assert len(found) <= OPENING + 100 // BLOCK + 1


def test_a_start_that_takes_long_is_not_a_long_step():
    choice = StepSampling()
    looked_at(choice, [SHORT_S] * 100)
    assert len(looked_at(choice, [30.0] + [SHORT_S] * 99)) <= OPENING + 100 // BLOCK + 1


def test_ranks_look_at_the_same_steps_though_one_is_slower():
    ranks = [StepSampling(), StepSampling()]
    for _ in range(3):
        quick, slow = (looked_at(rank, [cycle_s] * 150) for rank, cycle_s in zip(ranks, (0.01, 0.03), strict=True))
        assert quick == slow
