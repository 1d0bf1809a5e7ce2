"""The order of an epoch, and how good a shuffle it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.order.blocks import BlockTable, cut_blocks
from penstock.data.order.shuffle import deal, empty_lanes
from penstock.data.order.shuffle import epoch_order as order_with_lanes

COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=40)


def epoch_order(blocks, **settings):
    return order_with_lanes(blocks, **settings).samples


def table(counts):
    firsts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return BlockTable(firsts, np.zeros(len(counts), np.int64))


def block_of(blocks, samples):
    return np.searchsorted(blocks.first_samples, samples, side="right") - 1


def blocks_in_use(blocks, order):
    """Return, for each position, how many blocks have been begun and are not used up."""
    owner = block_of(blocks, order)
    positions = np.arange(len(order))
    first, last = np.full(len(blocks), len(order)), np.full(len(blocks), -1)
    np.minimum.at(first, owner, positions)
    np.maximum.at(last, owner, positions)
    change = np.bincount(first, minlength=len(order) + 1) - np.bincount(last + 1, minlength=len(order) + 1)
    return np.cumsum(change)[:-1]


def mean_distance(order):
    """Return how far samples move on average, as a fraction of the epoch: 1/3 in a full shuffle."""
    return float(np.abs(np.argsort(order) - np.arange(len(order))).mean()) / len(order)


@given(COUNTS, st.integers(0, 2**63), st.integers(0, 1000), st.integers(1, 70))
def test_every_sample_is_in_the_order_exactly_once(counts, seed, epoch, lanes):
    order = epoch_order(table(counts), seed=seed, epoch=epoch, lanes=lanes)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(sum(counts)))


@given(COUNTS, st.integers(0, 99), st.integers(0, 99), st.integers(1, 70))
def test_no_more_blocks_are_in_use_at_a_time_than_there_are_lanes(counts, seed, epoch, lanes):
    blocks = table(counts)
    assert blocks_in_use(blocks, epoch_order(blocks, seed=seed, epoch=epoch, lanes=lanes)).max() <= lanes


@given(COUNTS, st.integers(0, 99), st.integers(1, 12))
def test_consecutive_samples_come_from_different_lanes(counts, seed, lanes):
    blocks = table(counts)
    order = epoch_order(blocks, seed=seed, epoch=0, lanes=lanes)
    head = block_of(blocks, order[: min(lanes, len(counts))])
    assert len(set(head.tolist())) == len(head)


@given(COUNTS, st.integers(0, 99), st.integers(0, 99), st.integers(1, 70))
def test_the_same_inputs_give_the_same_order(counts, seed, epoch, lanes):
    first = epoch_order(table(counts), seed=seed, epoch=epoch, lanes=lanes)
    np.random.default_rng().random(7)
    assert np.array_equal(first, epoch_order(table(counts), seed=seed, epoch=epoch, lanes=lanes))


@given(COUNTS, st.integers(1, 12))
def test_lanes_end_within_one_block_of_each_other(counts, lanes):
    loads = np.bincount(deal(np.array(counts), empty_lanes(lanes)), counts, minlength=lanes)
    assert loads.sum() == sum(counts)
    assert loads.max() - loads.min() <= max(counts)


def test_a_second_deal_continues_with_the_lanes_of_the_first():
    heap = empty_lanes(3)
    assert deal(np.array([5, 1]), heap).tolist() == [0, 1]
    assert deal(np.array([3, 1, 1]), heap).tolist() == [2, 1, 1]


def test_blocks_of_one_size_are_dealt_to_the_lanes_in_turn():
    assert deal(np.full(7, 4), empty_lanes(3)).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_the_order_of_an_example_is_unchanged_so_that_saved_positions_keep_their_meaning():
    order = epoch_order(table([3, 4, 2, 3]), seed=7, epoch=1, lanes=2)
    assert order.tolist() == [7, 2, 8, 0, 10, 1, 9, 6, 11, 3, 4, 5]


@pytest.mark.parametrize("other", [{"seed": 1, "epoch": 0}, {"seed": 0, "epoch": 1}, {"seed": 1, "epoch": 1}])
def test_another_seed_or_epoch_gives_another_order(other):
    blocks = table([16] * 100)
    first, second = epoch_order(blocks, seed=0, epoch=0), epoch_order(blocks, **other)
    assert (first == second).mean() < 0.01


def test_neighbouring_samples_differ_between_epochs():
    blocks = table([16] * 100)
    orders = [epoch_order(blocks, seed=0, epoch=epoch) for epoch in range(2)]
    pairs = [set(zip(order.tolist(), order[1:].tolist(), strict=False)) for order in orders]
    assert len(pairs[0] & pairs[1]) < 10


def test_without_shuffling_the_order_is_that_of_the_shards():
    assert epoch_order(table([3, 4]), seed=5, epoch=9, shuffle=False).tolist() == list(range(7))


@pytest.mark.parametrize("shuffle", [True, False])
def test_no_samples_give_an_empty_order(shuffle):
    assert epoch_order(cut_blocks([], [], 10), seed=0, epoch=0, shuffle=shuffle).tolist() == []


@pytest.mark.parametrize(("per_block", "lanes"), [(3, 64), (20, 64), (100, 64), (100, 16)])
def test_samples_move_as_far_as_in_a_full_shuffle(per_block, lanes):
    blocks = table([per_block] * (40_000 // per_block))
    found = np.mean([mean_distance(epoch_order(blocks, seed=seed, epoch=0, lanes=lanes)) for seed in range(5)])
    assert found == pytest.approx(1 / 3, abs=0.02)


def test_a_sample_is_in_every_quarter_of_the_epoch_equally_often():
    blocks = table([8] * 40)
    quarters = np.zeros(4)
    for epoch in range(2000):
        position = int(np.flatnonzero(epoch_order(blocks, seed=0, epoch=epoch, lanes=4) == 17)[0])
        quarters[position * 4 // 320] += 1
    assert np.abs(quarters / 2000 - 0.25).max() < 0.04  # four standard deviations
