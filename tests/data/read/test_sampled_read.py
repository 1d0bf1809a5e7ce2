"""Blocks of picked samples: the right bytes, in few reads, in the order of the shards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.read.block_layout import FIRST_PART, PART_COLUMNS
from penstock.data.read.sample_index import WantedPart, make_sample_index
from penstock.data.read.sampled_read import MAX_BLOCK_READS, SampledBlockSource, SampledReadCounts
from penstock.data.read.shard_reader import ShardReader
from penstock.shards.scan import scan_shard
from penstock.testing import REID, make_shards

SAMPLES = 60
WANTED = [(".jpg",), (".json",)]
GAP = 1100
"""Replaces GAP_BYTES: the parts of one sample are joined, and two samples are not if there is another between them."""


@pytest.fixture(scope="module", autouse=True)
def small_gap():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.data.read.block_layout.GAP_BYTES", GAP)
        patch.setattr("penstock.data.read.sampled_read.GAP_BYTES", GAP)
        yield


@pytest.fixture(scope="module")
def sample_indexes(tmp_path_factory):
    """Sample indexes of three shards, by the order of their members."""
    made = {}
    for order in ("adjacent", "grouped", "shuffled"):
        folder = tmp_path_factory.mktemp(order)
        paths = make_shards(folder, REID, samples=SAMPLES, shards=3, order=order, scale=0.3)
        indexes = [scan_shard(path) for path in paths]
        made[order] = make_sample_index(
            [str(path) for path in paths],
            indexes,
            [np.arange(len(i)) for i in indexes],
            [WantedPart(suffixes) for suffixes in WANTED],
        )
    return made


@pytest.fixture
def reads(monkeypatch):
    """Shard and offset of every extent that is read, in order."""
    extents_read, read = [], ShardReader.read

    def spy(self, shard, extents, into):
        extents_read.extend((shard, extent.offset) for extent in extents)
        return read(self, shard, extents, into)

    monkeypatch.setattr(ShardReader, "read", spy)
    return extents_read


def read_blocks(source, picks):
    """Return an arena with all blocks of these picks one behind the other, and where each block begins."""
    arena, starts = bytearray(), {}
    for block in sorted(set(source.blocks_of(picks).tolist())):
        starts[block] = len(arena)
        memory = bytearray(source.block_bytes(block))
        source.read_block(block, memoryview(memory))
        arena += memory
    return arena, starts


def parts_of(source, picks):
    arena, starts = read_blocks(source, picks)
    rows = source.task_rows(
        picks, np.arange(len(picks)), np.array([starts[block] for block in source.blocks_of(picks)])
    )
    columns = rows[:, FIRST_PART:].reshape(len(picks), -1, PART_COLUMNS)
    return [[bytes(arena[start : start + length]) for start, length, *_ in row.tolist()] for row in columns]


def parts_in_shard(sample_index, sample):
    shard = int(np.searchsorted(sample_index.first_samples, sample, side="right")) - 1
    index, parts = sample_index.indexes[shard], sample_index.parts[shard][sample - sample_index.first_samples[shard]]
    with open(sample_index.paths[shard], "rb") as file:
        data = file.read()
    return [data[index.offsets[part] : index.offsets[part] + index.lengths[part]] for part in parts]


@pytest.mark.parametrize("order", ["adjacent", "grouped", "shuffled"])
@pytest.mark.parametrize("block_bytes", [1, 3_000, 1 << 20])
@settings(max_examples=25)
@given(picked=st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=40))
def test_rows_describe_the_right_bytes_wherever_the_parts_lie(sample_indexes, order, block_bytes, picked):
    sample_index = sample_indexes[order]
    source = SampledBlockSource(sample_index, block_bytes)
    picks = source.add_batch(np.array(picked), 0)
    assert source.sample_numbers(picks).tolist() == picked
    assert parts_of(source, picks) == [parts_in_shard(sample_index, sample) for sample in picked]
    source.close()


def test_reads_are_in_the_order_of_the_shards_whatever_the_order_of_the_picks(sample_indexes, reads):
    source = SampledBlockSource(sample_indexes["adjacent"], 1 << 20)
    read_blocks(source, source.add_batch(np.random.default_rng(0).permutation(SAMPLES)[:32], 0))
    assert reads == sorted(reads)
    assert len({shard for shard, _ in reads}) == 3
    source.close()


def test_samples_that_lie_apart_have_one_read_each_and_neighbours_share_one(sample_indexes):
    source = SampledBlockSource(sample_indexes["adjacent"], 1 << 20)
    read_blocks(source, picks := source.add_batch(np.arange(0, 20, 2), 0))
    source.mark_delivered(picks)
    apart = source.counts
    assert (apart.batches, apart.samples, apart.reads) == (1, 10, 10)
    assert apart.bytes_wanted < apart.bytes_read <= apart.bytes_wanted + 10 * GAP
    read_blocks(source, picks := source.add_batch(np.arange(19, 9, -1), 10))
    source.mark_delivered(picks)
    together = source.counts.since(apart)
    assert (together.batches, together.samples, together.reads) == (1, 10, 1)
    source.close()


def test_a_block_may_span_shards_but_has_few_reads(sample_indexes):
    source = SampledBlockSource(sample_indexes["shuffled"], 1 << 20)
    picks = source.add_batch(np.arange(0, SAMPLES, 2), 0)
    blocks = source.blocks_of(picks)
    for block in set(blocks.tolist()):
        assert sum(map(len, source._blocks[block].reads.values())) <= MAX_BLOCK_READS
    assert len(set(blocks.tolist())) < 15
    source.close()


def test_a_sample_longer_than_a_block_has_its_own_block(sample_indexes):
    source = SampledBlockSource(sample_indexes["adjacent"], 1)
    picks = source.add_batch(np.arange(12), 0)
    assert len(set(source.blocks_of(picks).tolist())) == 12
    source.close()


def test_an_empty_batch_reads_nothing(sample_indexes):
    source = SampledBlockSource(sample_indexes["adjacent"], 1 << 20)
    source.mark_delivered(source.add_batch(np.array([], np.int64), 0))
    assert source.counts == SampledReadCounts(batches=1)
    assert source.undelivered_batches == 0
    source.close()
