"""How the steps of an epoch are divided between ranks, by lanes, so that a block is read by few of them."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.order.batches import count_steps, rank_batches
from penstock.data.order.blocks import BlockTable
from penstock.data.order.lanes import EpochOrder
from penstock.data.order.mix import Mix, share_by_weight
from penstock.data.order.ranks import RankShare
from penstock.data.order.shuffle import epoch_order
from penstock.options import LANES, default_lanes

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=40)
WORLDS = st.integers(1, 20)


def table(counts):
    return BlockTable(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), np.zeros(len(counts), np.int64))


def mixed(counts, lanes, shuffle):
    """Return the order of two groups of shards of equal weight, of the same blocks."""
    blocks = table(counts * 2)
    return Mix(blocks, np.array([0, len(counts), 2 * len(counts)]), share_by_weight(2 * sum(counts), [3, 1])).order(
        seed=1, epoch=2, lanes=lanes, shuffle=shuffle
    )


@st.composite
def orders(draw):
    """Return an order as a loader makes it: of shards, of mixed groups or of a dataset, whole or cut short."""
    counts, lanes, shuffle = draw(COUNTS), draw(st.integers(1, 12)), draw(st.booleans())
    kind = draw(st.sampled_from(["shards", "mix", "dataset"]))
    if kind == "dataset":
        order = EpochOrder(np.random.default_rng(0).permutation(sum(counts)))
    elif kind == "mix":
        order = mixed(counts, lanes, shuffle)
    else:
        order = epoch_order(table(counts), seed=3, epoch=1, lanes=lanes, shuffle=shuffle)
    return order.first(draw(st.integers(1, len(order))))


def delivered(order, position, steps, batch_size, world_size, drop_last):
    """Return the samples that all ranks deliver in so many steps, without padding, and the position after that."""
    samples = []
    for rank in range(world_size):
        batches = list(rank_batches(order, position, batch_size, RankShare(rank, world_size), drop_last))[:steps]
        samples += [sample for batch, padding in batches for sample in batch[: len(batch) - padding].tolist()]
    return samples, min(len(order), position + steps * batch_size * world_size)


@given(orders(), st.integers(0, 400), st.integers(1, 60), WORLDS)
def test_ranks_divide_a_step_so_that_the_first_ones_have_one_sample_more(order, begin, size, world_size):
    begin = min(begin, len(order))
    end = min(len(order), begin + size)
    shares = [order.share(begin, end, RankShare(rank, world_size)).tolist() for rank in range(world_size)]
    assert sorted(itertools.chain(*shares)) == sorted(order.samples[begin:end].tolist())
    assert [len(share) for share in shares] == [len(range(rank, end - begin, world_size)) for rank in range(world_size)]


@given(orders(), st.integers(1, 5), WORLDS, WORLDS, st.data(), st.booleans())
def test_an_epoch_resumed_on_another_number_of_ranks_has_every_sample_once(
    order, batch_size, before, after, data, drop_last
):
    steps = count_steps(len(order), batch_size, before, drop_last).batches
    done, position = delivered(order, 0, data.draw(st.integers(0, steps)), batch_size, before, drop_last)
    left = count_steps(len(order) - position, batch_size, after, drop_last)
    rest, _ = delivered(order, position, left.batches, batch_size, after, drop_last)
    dropped = left.dropped if position < len(order) else 0
    expected = order.samples if not dropped else order.samples[:-dropped]
    assert Counter(done + rest) == Counter(expected.tolist())


@given(COUNTS, st.sampled_from([1, 2, 3, 6]), st.integers(0, 5))
def test_while_all_lanes_have_samples_ranks_that_divide_them_take_every_nth_sample(counts, world_size, step):
    order = epoch_order(table(counts), seed=5, epoch=0, lanes=6)
    begin, end = step * 12, step * 12 + 12
    if end > len(order) - len(order.tail_lanes):
        return
    for rank in range(world_size):
        expected = order.samples[begin:end][rank::world_size]
        assert order.share(begin, end, RankShare(rank, world_size)).tolist() == expected.tolist()


def blocks_read(order, blocks, position, batch_size, world_size):
    """Return the share of the needed blocks that each rank reads."""
    needed = np.unique(np.searchsorted(blocks.first_samples, order.samples[position:], side="right"))
    found = []
    for rank in range(world_size):
        batches = [batch for batch, _ in rank_batches(order, position, batch_size, RankShare(rank, world_size), True)]
        samples = np.concatenate(batches)
        found.append(len(np.unique(np.searchsorted(blocks.first_samples, samples, side="right"))) / len(needed))
    return found


BLOCKS = 30
"""Blocks of each lane."""


def blocks_of_lanes(lanes, even=False):
    counts = np.full(BLOCKS * lanes, 20) if even else np.random.default_rng(0).integers(15, 27, BLOCKS * lanes)
    return table(counts)


@pytest.mark.parametrize("world_size", [2, 3, 6, 8, 12, 24, 48, 64, 96, 128])
def test_by_default_a_rank_reads_its_share_of_the_blocks(world_size):
    lanes = default_lanes(world_size)
    blocks = blocks_of_lanes(lanes, even=True)
    shares = blocks_read(epoch_order(blocks, seed=1, epoch=0, lanes=lanes), blocks, 0, 24, world_size)
    assert shares == pytest.approx([1 / world_size] * world_size)
    blocks = blocks_of_lanes(lanes)  # of different sizes: the last blocks of the lanes are divided
    shares = blocks_read(epoch_order(blocks, seed=1, epoch=0, lanes=lanes), blocks, 0, 24, world_size)
    assert sum(shares) < 1.06
    assert max(shares) < 1.2 / world_size


@pytest.mark.parametrize(("world_size", "most"), [(3, 1.1), (6, 1.15), (12, 1.3), (24, 1.4), (48, 1.6), (96, 2.2)])
def test_the_rest_of_an_epoch_of_64_lanes_costs_other_ranks_few_more_blocks(world_size, most):
    blocks = blocks_of_lanes(LANES)
    order = epoch_order(blocks, seed=1, epoch=0, lanes=LANES)
    shares = blocks_read(order, blocks, 8 * 24 * 50, 24, world_size)
    assert 1 < sum(shares) < most


def test_without_shuffling_a_rank_reads_consecutive_samples():
    order = epoch_order(table([20] * 50), seed=0, epoch=0, shuffle=False)
    assert order.share(24, 48, RankShare(1, 3)).tolist() == list(range(32, 40))
    assert order.share(24, 47, RankShare(2, 3)).tolist() == list(range(40, 47))
    assert sum(blocks_read(order, table([20] * 50), 0, 60, 8)) < 1.4


def test_the_default_lanes_are_the_smallest_multiple_of_the_ranks_from_64_on():
    assert [default_lanes(ranks) for ranks in (1, 2, 3, 6, 8, 24, 48, 64, 96, 128)] == [
        64, 64, 66, 66, 64, 72, 96, 64, 96, 128,
    ]  # fmt: skip
