"""The order of an epoch over several groups of shards."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.order.blocks import BlockTable
from penstock.data.order.mix import Mix, share_by_weight

BLOCKS = st.lists(st.integers(1, 9), min_size=1, max_size=15)
MIXES = st.lists(st.tuples(BLOCKS, st.integers(1, 40)), min_size=2, max_size=4)
WINDOW = 256


def mix_of(*groups, total=None):
    """Return a mix of groups given as (samples of each block, weight)."""
    counts = np.concatenate([blocks for blocks, _ in groups]).astype(np.int64)
    blocks = BlockTable(np.concatenate(([0], np.cumsum(counts))), np.zeros(len(counts), np.int64))
    firsts = np.concatenate(([0], np.cumsum([len(blocks) for blocks, _ in groups])))
    return Mix(blocks, firsts, share_by_weight(total or int(counts.sum()), [weight for _, weight in groups]))


def group_of(mix, order):
    """Return the group of each sample of an order."""
    bounds = mix.blocks.first_samples[mix.first_blocks]
    return np.searchsorted(bounds, mix.sample_numbers(order), side="right") - 1


def order_of(mix, *, seed=0, epoch=0, lanes=8, shuffle=True):
    return mix.order(seed=seed, epoch=epoch, lanes=lanes, shuffle=shuffle).samples


LARGE = {
    "3:1, one group in part, the other in several rounds": [([19, 14, 23] * 1300, 3), ([5, 39] * 250, 1)],
    "5:2:1, blocks of one sample": [([19, 14, 23] * 130, 5), ([5, 39] * 25, 2), ([1, 3] * 1000, 1)],
    "1:1, one group of a single block": [([19] * 400, 1), ([20], 1)],
}


@given(st.integers(1, 10_000), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_shares_add_up_and_differ_from_the_weights_by_less_than_one(total, weights):
    counts = share_by_weight(total, weights)
    assert counts.sum() == total
    assert np.abs(counts - total * np.array(weights) / sum(weights)).max() < 1 + 1e-6


def test_the_rest_goes_to_the_largest_remainders_and_among_equals_to_the_first():
    assert share_by_weight(10, [1, 1, 1]).tolist() == [4, 3, 3]
    assert share_by_weight(10, [3, 1]).tolist() == [8, 2]
    assert share_by_weight(7, [5, 1, 1]).tolist() == [5, 1, 1]
    assert share_by_weight(4, [1e308, 1e308]).tolist() == [2, 2]


@given(MIXES, st.integers(0, 2**63), st.integers(0, 99), st.integers(1, 70), st.booleans())
def test_each_group_gives_its_share_and_each_of_its_samples_equally_often(groups, seed, epoch, lanes, shuffle):
    mix = mix_of(*groups)
    order = order_of(mix, seed=seed, epoch=epoch, lanes=lanes, shuffle=shuffle)
    assert np.bincount(group_of(mix, order), minlength=len(groups)).tolist() == mix.samples.tolist()
    times = np.bincount(mix.sample_numbers(order), minlength=int(mix.blocks.first_samples[-1]))
    bounds = mix.blocks.first_samples[mix.first_blocks]
    for first, last, samples in zip(bounds[:-1], bounds[1:], mix.samples, strict=True):
        exact = samples / (last - first)
        assert set(times[first:last].tolist()) <= {math.floor(exact), math.ceil(exact)}


@given(MIXES, st.integers(0, 99), st.integers(1, 70), st.booleans())
def test_a_repeated_sample_has_another_number_and_belongs_to_another_visit(groups, seed, lanes, shuffle):
    mix = mix_of(*groups)
    order = order_of(mix, seed=seed, lanes=lanes, shuffle=shuffle)
    assert len(set(order.tolist())) == len(order)
    pairs = {(int(v), int(own)) for v, own in zip(mix.visits_of(order), mix.sample_numbers(order), strict=True)}
    assert len(pairs) == len(order)


@given(MIXES, st.integers(0, 99), st.integers(0, 99), st.integers(1, 70), st.booleans())
def test_the_same_inputs_give_the_same_order(groups, seed, epoch, lanes, shuffle):
    settings = {"seed": seed, "epoch": epoch, "lanes": lanes, "shuffle": shuffle}
    first = order_of(mix_of(*groups), **settings)
    np.random.default_rng().random(7)
    assert np.array_equal(first, order_of(mix_of(*groups), **settings))


def test_the_order_of_an_example_is_unchanged_so_that_saved_positions_keep_their_meaning():
    mix = mix_of(([3, 2], 1), ([2, 1, 2], 3))
    assert mix.samples.tolist() == [3, 7]
    assert order_of(mix, seed=7, epoch=1, lanes=2).tolist() == [7, 9, 4, 8, 5, 12, 3, 14, 6, 1]
    assert mix.sample_numbers(np.arange(15)).tolist() == [*range(10), 5, 6, 7, 8, 9]


@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 1}])
def test_another_seed_or_epoch_gives_another_order(other):
    mix = mix_of(*LARGE["5:2:1, blocks of one sample"])
    assert (order_of(mix) == order_of(mix, **other)).mean() < 0.01


def test_every_round_but_the_last_is_complete_and_rounds_differ():
    mix = mix_of(([4] * 5, 1), ([4] * 5, 3))
    order = order_of(mix, lanes=1)
    second = mix.sample_numbers(order[group_of(mix, order) == 1])
    first_round, rest = second[:20], second[20:]
    assert sorted(first_round.tolist()) == list(range(20, 40))
    assert len(set(rest.tolist())) == len(rest) == 10
    assert first_round[:10].tolist() != rest.tolist()


@pytest.mark.parametrize("name", LARGE)
def test_every_section_of_the_epoch_has_nearly_the_mixture_of_the_weights(name):
    """Check windows against the bound by rounding, and against random draws.

    After p samples of a lane, group i has p·q of them, give or take (1 − q) + q·(groups − 1) for rounding. Over a
    window of all lanes these add up to a bound that always holds. But the lanes have different phases, so the
    roundings cancel: no window differs by more than three standard deviations of drawing each sample by weight, which
    such drawing itself exceeds in one window of 370.
    """
    mix = mix_of(*LARGE[name])
    lanes = 64
    order = order_of(mix, lanes=lanes)
    group = group_of(mix, order)
    for number, samples in enumerate(mix.samples.tolist()):
        share = samples / len(mix)
        counts = np.concatenate(([0], np.cumsum(group == number)))
        error = np.abs(counts[WINDOW:] - counts[:-WINDOW] - WINDOW * share)
        assert error.max() <= 2 * lanes * (1 - share + share * (len(mix.samples) - 1))
        assert error.max() <= 3 * math.sqrt(WINDOW * share * (1 - share))


@given(MIXES)
def test_without_shuffling_the_groups_are_merged_evenly_in_file_order(groups):
    mix = mix_of(*groups)
    order = order_of(mix, shuffle=False)
    group = group_of(mix, order)
    bounds = mix.blocks.first_samples[mix.first_blocks]
    positions = np.arange(1, len(order) + 1)
    for number, samples in enumerate(mix.samples.tolist()):
        own = mix.sample_numbers(order[group == number])
        size = bounds[number + 1] - bounds[number]
        assert own.tolist() == [int(bounds[number]) + number_in_group % size for number_in_group in range(samples)]
        error = np.cumsum(group == number) - positions * samples / len(order)
        assert np.abs(error).max() <= len(groups)


@given(MIXES, st.integers(0, 99), st.sampled_from([(8, 2), (8, 4), (8, 8), (64, 8)]))
def test_a_visit_belongs_to_one_rank_while_no_lane_is_empty(groups, seed, lanes_and_ranks):
    lanes, ranks = lanes_and_ranks
    mix = mix_of(*[(blocks * 8, weight) for blocks, weight in groups])
    order = order_of(mix, seed=seed, lanes=lanes)
    largest = int(mix.blocks.counts.max())
    together = max(0, len(order) // lanes - largest) * lanes  # lanes end within one block of each other
    visits = mix.visits_of(order[:together])
    owners = [set(visits[rank::ranks].tolist()) for rank in range(ranks)]
    assert sum(map(len, owners)) == len(set().union(*owners))


@given(MIXES, st.integers(0, 99), st.integers(1, 12))
def test_no_more_blocks_are_in_use_than_lanes_times_groups(groups, seed, lanes):
    mix = mix_of(*groups)
    visits = mix.visits_of(order_of(mix, seed=seed, lanes=lanes))
    first = {visit: position for position, visit in reversed(list(enumerate(visits.tolist())))}
    last = {visit: position for position, visit in enumerate(visits.tolist())}
    change = np.zeros(len(visits) + 1, np.int64)
    for visit in first:
        change[first[visit]] += 1
        change[last[visit] + 1] -= 1
    assert np.cumsum(change).max() <= lanes * len(groups)
