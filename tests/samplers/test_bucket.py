"""Batches of similar length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.samplers import BucketSampler, MetadataTable

LENGTHS = np.random.default_rng(0).integers(1, 500, 1000)
TABLE = MetadataTable.of(length=LENGTHS)


@given(st.integers(1, 90), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5))
def test_every_sample_occurs_once_and_ranks_have_equally_many_batches_of_the_same_sizes(
    samples, batch, world_size, window
):
    table = MetadataTable.of(length=LENGTHS[:samples])
    ranks = [
        list(BucketSampler(table, batch, window=window, rank=rank, world_size=world_size)) for rank in range(world_size)
    ]
    assert len({tuple(map(len, rank)) for rank in ranks}) == 1
    drawn = [sample for rank in ranks for some in rank for sample in some]
    assert set(drawn) == set(range(samples))
    assert len(drawn) - samples < world_size


def test_batches_are_of_similar_length_and_their_order_is_random():
    sampler = BucketSampler(TABLE, 10)
    batches = list(sampler)
    assert sampler.padding() < 0.02
    means = [LENGTHS[batch].mean() for batch in batches]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.3
    assert "in random batches" in str(sampler)


def test_a_larger_window_pads_less():
    assert BucketSampler(TABLE, 10, window=50).padding() < BucketSampler(TABLE, 10, window=2).padding() < 0.4


def test_ranks_of_a_step_have_similar_lengths():
    ranks = [list(BucketSampler(TABLE, 10, rank=rank, world_size=4)) for rank in range(4)]
    for step in zip(*ranks, strict=True):
        longest = [LENGTHS[batch].max() for batch in step]
        assert max(longest) - min(longest) <= 30


def test_drop_last_leaves_out_other_samples_each_epoch():
    sampler = BucketSampler(MetadataTable.of(length=LENGTHS[:95]), 10, drop_last=True)
    first, second = ({sample for batch in sampler for sample in batch} for _ in range(2))
    assert len(first) == len(second) == 90
    assert first != second


def test_a_state_can_be_resumed_on_another_number_of_ranks():
    sampler = BucketSampler(TABLE, 20)
    whole = list(sampler)
    state = sampler.state_dict(batches=7)
    ranks = [BucketSampler(TABLE, 10, rank=rank, world_size=2) for rank in range(2)]
    for each in ranks:
        each.load_state_dict(state)
    steps = [sorted(a + b) for a, b in zip(*map(list, ranks), strict=True)]
    assert steps == [sorted(batch) for batch in whole[7:]]


def test_lengths_that_cannot_be_sorted_or_batched_are_refused():
    with pytest.raises(SettingError, match="below 0"):
        BucketSampler(MetadataTable.of(length=[-1, 2]), 1)
    with pytest.raises(SettingError, match="strings"):
        BucketSampler(MetadataTable.of(length=["long"]), 1)
    with pytest.raises(SettingError, match="no batch"):
        BucketSampler(MetadataTable.of(length=[1, 2]), 3, drop_last=True)
