"""How an epoch is divided between ranks and batches."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.order.batches import StepCount, count_steps, rank_batches
from penstock.data.order.lanes import EpochOrder
from penstock.data.order.ranks import RankShare

WORLDS = [1, 2, 3, 4, 6, 8, 13]
SAMPLES = st.integers(0, 300)


def shuffled(samples, seed=0):
    """Return an order without lanes."""
    return EpochOrder(np.random.default_rng(seed).permutation(samples).astype(np.int64))


def batches_of_ranks(order, batch_size, world_size, drop_last=False, position=0):
    """The batches of each rank."""
    return [
        [
            batch.tolist()
            for batch, _ in rank_batches(order, position, batch_size, RankShare(rank, world_size), drop_last)
        ]
        for rank in range(world_size)
    ]


@pytest.mark.parametrize(
    ("samples", "batch_size", "world_size", "drop_last", "expected"),
    [
        (100, 10, 1, False, StepCount(10, 0, 0)),
        (105, 10, 1, False, StepCount(11, 0, 0)),
        (105, 10, 1, True, StepCount(10, 5, 0)),
        (100, 10, 4, False, StepCount(3, 0, 0)),
        (101, 10, 4, False, StepCount(3, 0, 3)),
        (101, 10, 4, True, StepCount(2, 21, 0)),
        (3, 10, 4, True, StepCount(0, 3, 0)),
        (0, 10, 4, False, StepCount(0, 0, 0)),
    ],
)
def test_steps_and_dropped_or_padded_samples_are_counted(samples, batch_size, world_size, drop_last, expected):
    assert count_steps(samples, batch_size, world_size, drop_last) == expected


@given(SAMPLES, st.integers(1, 20), st.sampled_from(WORLDS))
def test_every_sample_is_delivered_once_over_all_ranks_apart_from_the_padding(samples, batch_size, world_size):
    order = shuffled(samples)
    steps = count_steps(samples, batch_size, world_size, drop_last=False)
    ranks = batches_of_ranks(order, batch_size, world_size)
    counts = Counter(sample for batches in ranks for batch in batches for sample in batch)
    assert set(counts) == set(range(samples))
    assert counts.total() == samples + steps.padded
    assert steps.padded < world_size


@given(SAMPLES, st.integers(1, 20), st.sampled_from(WORLDS))
def test_drop_last_gives_full_batches_only_and_counts_the_dropped_samples(samples, batch_size, world_size):
    steps = count_steps(samples, batch_size, world_size, drop_last=True)
    ranks = batches_of_ranks(shuffled(samples), batch_size, world_size, drop_last=True)
    delivered = [sample for batches in ranks for batch in batches for sample in batch]
    assert len(delivered) == len(set(delivered)) == samples - steps.dropped
    assert {len(batch) for batches in ranks for batch in batches} <= {batch_size}


@given(SAMPLES, st.integers(1, 20), st.sampled_from(WORLDS), st.booleans())
def test_all_ranks_have_the_same_number_of_batches_of_the_same_sizes(samples, batch_size, world_size, drop_last):
    steps = count_steps(samples, batch_size, world_size, drop_last)
    sizes = [
        [len(batch) for batch in batches]
        for batches in batches_of_ranks(shuffled(samples), batch_size, world_size, drop_last)
    ]
    assert all(rank_sizes == sizes[0] for rank_sizes in sizes)
    assert len(sizes[0]) == steps.batches
    assert all(sizes[0])


@given(SAMPLES, st.sampled_from([312, 624]), st.booleans())
def test_a_step_has_the_same_samples_on_any_number_of_ranks(samples, global_batch, drop_last):
    order = shuffled(samples)
    alone = batches_of_ranks(order, global_batch, 1, drop_last)[0]
    for world_size in WORLDS[1:]:
        ranks = batches_of_ranks(order, global_batch // world_size, world_size, drop_last)
        for step, expected in enumerate(alone):
            together = [sample for batches in ranks for sample in batches[step]]
            assert set(together) >= set(expected)
            assert set(together) - set(expected) <= set(order.samples[: world_size - 1].tolist())
            if len(expected) % world_size == 0:
                assert sorted(together) == sorted(expected)


@given(SAMPLES, st.integers(1, 12), st.sampled_from(WORLDS), st.integers(0, 60), st.booleans())
def test_resuming_after_any_step_gives_exactly_the_remaining_batches(samples, batch_size, world_size, done, drop_last):
    order = shuffled(samples)
    position = min(samples, done * batch_size * world_size)
    whole = batches_of_ranks(order, batch_size, world_size, drop_last)
    rest = batches_of_ranks(order, batch_size, world_size, drop_last, position)
    if drop_last and position == samples:  # the samples that would be dropped lie before the position
        assert rest == [[]] * world_size
    else:
        assert rest == [batches[done:] for batches in whole]


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 12), st.sampled_from(WORLDS))
def test_resuming_at_any_position_on_any_number_of_ranks_gives_the_remaining_samples(
    samples, position, batch_size, world_size
):
    order = shuffled(samples)
    position = min(position, samples)
    ranks = batches_of_ranks(order, batch_size, world_size, position=position)
    padded = count_steps(samples - position, batch_size, world_size, drop_last=False).padded
    counts = Counter(sample for batches in ranks for batch in batches for sample in batch)
    assert set(order.samples[position:].tolist()) <= set(counts)
    assert counts.total() == samples - position + padded


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_every_rank_has_a_batch_even_with_fewer_samples_than_ranks(samples):
    ranks = batches_of_ranks(shuffled(samples), 4, 8)
    assert [len(batches) for batches in ranks] == [1] * 8
    assert [len(batches[0]) for batches in ranks] == [1] * 8


@given(SAMPLES, st.integers(1, 12), st.sampled_from(WORLDS))
def test_the_samples_that_fill_the_last_step_are_at_the_end_of_the_last_ranks_batches(samples, batch_size, world_size):
    order = shuffled(samples)
    padding = count_steps(samples, batch_size, world_size, drop_last=False).padded
    ranks = [list(rank_batches(order, 0, batch_size, RankShare(rank, world_size), False)) for rank in range(world_size)]
    marked = [sum(padded for _, padded in batches) for batches in ranks]
    assert marked == [0] * (world_size - padding) + [1] * padding
    real = [
        sample for batches in ranks for batch, padded in batches for sample in batch[: len(batch) - padded].tolist()
    ]
    assert sorted(real) == list(range(samples))
