"""The choice of the steps that are profiled."""

import pytest

from penstock.watcher.step_sampling import (
    FIRST_OF_EPOCH,
    FIRST_OF_LOADER,
    INTERVAL,
    LONG_S,
    MAX_UNPROFILED_S,
    StepSampling,
)

SHORT_S = 0.01


def profiled_steps(sampling, cycles_s):
    """Run an epoch and return the indices of its profiled steps. `cycles_s` are the seconds from each step to the next.

    This does what the hooks do with `unprofiled_after` and MAX_UNPROFILED_S.
    """
    now, unprofiled_left, unprofiled_until, profiled = 1.0, 0, 0.0, []
    for batch, cycle_s in enumerate(cycles_s):
        if unprofiled_left:
            unprofiled_left = unprofiled_left - 1 if now < unprofiled_until else 0
        else:
            unprofiled_left, unprofiled_until = sampling.unprofiled_after(batch, now), now + MAX_UNPROFILED_S
            profiled.append(batch)
        now += cycle_s
    sampling.end_epoch(len(cycles_s))
    return profiled


def test_every_step_of_a_short_run_is_profiled():
    assert profiled_steps(StepSampling(), [SHORT_S] * FIRST_OF_LOADER) == list(range(FIRST_OF_LOADER))


def test_one_short_step_per_interval_is_profiled_at_varying_places():
    profiled = [batch for batch in profiled_steps(StepSampling(), [SHORT_S] * (51 * INTERVAL)) if batch >= INTERVAL]
    assert [batch // INTERVAL for batch in profiled] == list(range(1, 51))
    assert len({batch % INTERVAL for batch in profiled}) > 25


@pytest.mark.parametrize("every", [8, 10, 16, 50, 100])
def test_every_nth_step_is_profiled_about_as_often_as_other_steps(every):
    profiled = profiled_steps(StepSampling(), [SHORT_S] * (FIRST_OF_LOADER + 1000 * INTERVAL))[FIRST_OF_LOADER:]
    assert sum(batch % every == 0 for batch in profiled) / len(profiled) == pytest.approx(1 / every, rel=0.5)


def test_all_long_steps_are_profiled():
    assert profiled_steps(StepSampling(), [1.1 * LONG_S] * 500) == list(range(500))


def test_when_steps_become_long_all_are_soon_profiled():
    profiled = profiled_steps(StepSampling(), [SHORT_S] * 200 + [0.4] * 100)
    start = 200 + INTERVAL
    assert [batch for batch in profiled if batch >= start] == list(range(start, 300))


def test_when_steps_become_short_few_are_profiled_again():
    profiled = profiled_steps(StepSampling(), [0.1] * 100 + [SHORT_S] * 400)
    assert len([batch for batch in profiled if batch >= 200]) == pytest.approx(300 / INTERVAL, abs=1)


def test_one_long_step_among_short_ones_does_not_make_its_neighbour_profiled():
    """Otherwise an optimizer step after every twentieth batch would never be profiled itself."""
    cycles_s = [0.2 if batch % 20 == 0 else SHORT_S for batch in range(FIRST_OF_LOADER + 400 * INTERVAL)]
    profiled = profiled_steps(StepSampling(), cycles_s)[FIRST_OF_LOADER:]
    assert sum(batch % 20 == 0 for batch in profiled) / len(profiled) == pytest.approx(1 / 20, rel=0.5)


def test_the_first_steps_of_every_epoch_are_profiled():
    sampling = StepSampling()
    profiled_steps(sampling, [SHORT_S] * 100)
    profiled = profiled_steps(sampling, [SHORT_S] * 100)
    assert profiled[:FIRST_OF_EPOCH] == list(range(FIRST_OF_EPOCH))
    assert len(profiled) <= FIRST_OF_EPOCH + 100 // INTERVAL + 1


def test_a_slow_start_of_the_workers_does_not_count_as_a_long_step():
    sampling = StepSampling()
    profiled_steps(sampling, [SHORT_S] * 100)
    assert len(profiled_steps(sampling, [30.0] + [SHORT_S] * 99)) <= FIRST_OF_EPOCH + 100 // INTERVAL + 1


def test_all_ranks_profile_the_same_steps_even_if_one_is_slower():
    ranks = [StepSampling(), StepSampling()]
    for _ in range(3):
        fast, slow = (profiled_steps(rank, [cycle_s] * 150) for rank, cycle_s in zip(ranks, (0.01, 0.03), strict=True))
        assert fast == slow
