"""Cutting shards into blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.order.blocks import cut_blocks, sample_sizes
from penstock.shards.scan import scan_shard
from penstock.testing import IMAGENET, make_shards

SHARDS = st.lists(st.tuples(st.lists(st.integers(0, 5000), max_size=30), st.booleans()), max_size=6)


def blocks_of(shards, block_bytes, whole=None):
    sizes = [np.array(shard, np.int64) for shard in shards]
    return cut_blocks(sizes, whole or [False] * len(shards), block_bytes)


def test_samples_of_one_size_are_cut_into_equal_blocks():
    blocks = blocks_of([[100] * 12], 400)
    assert blocks.counts.tolist() == [4, 4, 4]
    assert blocks.first_samples.tolist() == [0, 4, 8, 12]
    assert len(blocks) == 3


def test_a_compressed_shard_is_one_block_however_large():
    blocks = blocks_of([[100] * 12, [100] * 12], 400, [True, False])
    assert blocks.counts.tolist() == [12, 4, 4, 4]
    assert blocks.shards.tolist() == [0, 1, 1, 1]


def test_a_block_never_spans_two_shards():
    blocks = blocks_of([[1], [1, 1], [1]], 1 << 20)
    assert blocks.counts.tolist() == [1, 2, 1]
    assert blocks.shards.tolist() == [0, 1, 2]


def test_empty_shards_have_no_block_but_keep_their_number():
    blocks = blocks_of([[], [5, 5], [], [5], []], 100)
    assert blocks.shards.tolist() == [1, 3]
    assert blocks.first_samples.tolist() == [0, 2, 3]


def test_shards_without_samples_give_an_empty_table():
    blocks = blocks_of([[], []], 100)
    assert len(blocks) == 0
    assert blocks.first_samples.tolist() == [0]


def test_a_sample_larger_than_a_block_has_its_own_block():
    assert blocks_of([[1000, 1000, 1000]], 100).counts.tolist() == [1, 1, 1]


def test_empty_samples_share_a_block():
    assert blocks_of([[0] * 5], 100).counts.tolist() == [5]


def test_sizes_and_flags_of_different_lengths_are_an_error():
    with pytest.raises(ValueError, match="shorter"):
        blocks_of([[1], [1]], 10, [False])


@given(SHARDS, st.integers(1, 8000))
def test_blocks_hold_every_sample_once_and_never_cross_shards(shards, block_bytes):
    sizes, whole = [shard for shard, _ in shards], [flag for _, flag in shards]
    blocks = blocks_of(sizes, block_bytes, whole)
    assert blocks.counts.sum() == sum(map(len, sizes))
    assert (blocks.counts > 0).all()
    shard_of_sample = np.repeat(np.arange(len(sizes)), [len(shard) for shard in sizes])
    for first, last, shard in zip(blocks.first_samples, blocks.first_samples[1:], blocks.shards, strict=False):
        assert set(shard_of_sample[first:last].tolist()) == {shard}
    for number, (shard, flag) in enumerate(shards):
        if flag and shard:
            assert (blocks.shards == number).sum() == 1


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60), st.integers(1, 8000))
def test_a_block_exceeds_block_bytes_by_its_largest_sample_at_most(shard, block_bytes):
    blocks = blocks_of([shard], block_bytes)
    totals = np.add.reduceat(np.array(shard), blocks.first_samples[:-1])
    assert totals.max() <= block_bytes + max(shard)


def test_the_size_of_a_sample_is_the_sum_of_all_its_parts(tmp_path):
    (shard,) = make_shards(tmp_path, IMAGENET, samples=5, order="grouped", scale=0.1)
    index = scan_shard(shard)
    expected = [sum(part.length for part in index.sample(number).parts) for number in range(5)]
    assert sample_sizes(index).tolist() == expected
