"""Blocks of picked samples: the very bytes that were asked for, in few reads, in the order of their place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.read.block_layout import FIRST_PART, PART_COLUMNS
from penstock.data.read.sample_index import make_sample_index
from penstock.data.read.sampled_read import MAX_BLOCK_READS, SampledBlockSource, SampledReadCounts
from penstock.data.read.shard_reader import ShardReader
from penstock.shards.scan import scan_shard
from penstock.testing import REID, make_shards

SAMPLES = 60
WANTED = [(".jpg",), (".json",)]
GAP = 1100
"""In place of the real one: the parts of a sample are near, and a sample that is left out makes its neighbours far."""


@pytest.fixture(scope="module", autouse=True)
def _samples_lie_far_apart():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.data.read.block_layout.GAP_BYTES", GAP)
        patch.setattr("penstock.data.read.sampled_read.GAP_BYTES", GAP)
        yield


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """By the order of their members, in three shards."""
    made = {}
    for order in ("adjacent", "grouped", "shuffled"):
        folder = tmp_path_factory.mktemp(order)
        paths = make_shards(folder, REID, samples=SAMPLES, shards=3, order=order, scale=0.3)
        indexes = [scan_shard(path) for path in paths]
        made[order] = make_sample_index(
            [str(path) for path in paths], indexes, [np.arange(len(i)) for i in indexes], WANTED
        )
    return made


@pytest.fixture
def spied(monkeypatch):
    """What is read, in turn: shard and offset."""
    seen, read = [], ShardReader.read

    def spy(self, shard, extents, into):
        seen.extend((shard, extent.offset) for extent in extents)
        return read(self, shard, extents, into)

    monkeypatch.setattr(ShardReader, "read", spy)
    return seen


def filled(block_source, picks):
    """The arena with all blocks of these picks behind each other, and where each block begins."""
    arena, bases = bytearray(), {}
    for block in sorted(set(block_source.blocks_of(picks).tolist())):
        bases[block] = len(arena)
        memory = bytearray(block_source.block_bytes(block))
        block_source.read_block(block, memoryview(memory))
        arena += memory
    return arena, bases


def parts_of(block_source, picks):
    arena, bases = filled(block_source, picks)
    rows = block_source.task_rows(
        picks, np.arange(len(picks)), np.array([bases[block] for block in block_source.blocks_of(picks)])
    )
    columns = rows[:, FIRST_PART:].reshape(len(picks), -1, PART_COLUMNS)
    return [[bytes(arena[at : at + length]) for at, length, *_ in row.tolist()] for row in columns]


def in_shards(dataset, sample):
    shard = int(np.searchsorted(dataset.first_samples, sample, side="right")) - 1
    index, parts = dataset.indexes[shard], dataset.parts[shard][sample - dataset.first_samples[shard]]
    with open(dataset.paths[shard], "rb") as file:
        data = file.read()
    return [data[index.offsets[part] : index.offsets[part] + index.lengths[part]] for part in parts]


@pytest.mark.parametrize("order", ["adjacent", "grouped", "shuffled"])
@pytest.mark.parametrize("block_bytes", [1, 3_000, 1 << 20])
@settings(max_examples=25)
@given(picked=st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=40))
def test_rows_point_at_the_very_bytes_wherever_the_parts_lie(datasets, order, block_bytes, picked):
    dataset = datasets[order]
    block_source = SampledBlockSource(dataset, block_bytes)
    picks = block_source.add_batch(np.array(picked), 0)
    assert block_source.sample_numbers(picks).tolist() == picked
    assert parts_of(block_source, picks) == [in_shards(dataset, sample) for sample in picked]
    block_source.close()


def test_reads_go_from_front_to_back_whatever_the_order_of_the_picks(datasets, spied):
    block_source = SampledBlockSource(datasets["adjacent"], 1 << 20)
    filled(block_source, block_source.add_batch(np.random.default_rng(0).permutation(SAMPLES)[:32], 0))
    assert spied == sorted(spied)
    assert len({shard for shard, _ in spied}) == 3
    block_source.close()


def test_samples_that_lie_apart_have_a_read_each_and_neighbours_one(datasets):
    block_source = SampledBlockSource(datasets["adjacent"], 1 << 20)
    filled(block_source, picks := block_source.add_batch(np.arange(0, 20, 2), 0))
    block_source.mark_delivered(picks)
    apart = block_source.counts
    assert (apart.batches, apart.samples, apart.reads) == (1, 10, 10)
    assert apart.bytes_wanted < apart.bytes_read <= apart.bytes_wanted + 10 * GAP
    filled(block_source, picks := block_source.add_batch(np.arange(19, 9, -1), 10))
    block_source.mark_delivered(picks)
    together = block_source.counts.since(apart)
    assert (together.batches, together.samples, together.reads) == (1, 10, 1)
    block_source.close()


def test_a_block_has_a_few_reads_of_several_shards_and_not_more(datasets):
    block_source = SampledBlockSource(datasets["shuffled"], 1 << 20)
    picks = block_source.add_batch(np.arange(0, SAMPLES, 2), 0)
    blocks = block_source.blocks_of(picks)
    for block in set(blocks.tolist()):
        assert sum(map(len, block_source._blocks[block].reads.values())) <= MAX_BLOCK_READS
    assert len(set(blocks.tolist())) < 15
    block_source.close()


def test_what_is_longer_than_a_block_has_one_of_its_own(datasets):
    block_source = SampledBlockSource(datasets["adjacent"], 1)
    picks = block_source.add_batch(np.arange(12), 0)
    assert len(set(block_source.blocks_of(picks).tolist())) == 12
    block_source.close()


def test_nothing_picked_is_nothing_read(datasets):
    block_source = SampledBlockSource(datasets["adjacent"], 1 << 20)
    block_source.mark_delivered(block_source.add_batch(np.array([], np.int64), 0))
    assert block_source.counts == SampledReadCounts(batches=1)
    assert block_source.undelivered_batches == 0
    block_source.close()
