"""Blocks of picked samples: the very bytes that were asked for, in few reads, in the order of their place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.read.block_layout import PARTS, WIDTH
from penstock.data.read.byte_ranges import OpenedShards
from penstock.data.read.sample_index import make_sample_index
from penstock.data.read.sampled_read import MOST_READS, SampledBlockSource, SampledBlockTable
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
    seen, read = [], OpenedShards.read

    def spy(self, shard, extents, into):
        seen.extend((shard, extent.offset) for extent in extents)
        return read(self, shard, extents, into)

    monkeypatch.setattr(OpenedShards, "read", spy)
    return seen


def filled(supply, picks):
    """The arena with all blocks of these picks behind each other, and where each block begins."""
    arena, bases = bytearray(), {}
    for block in sorted(set(supply.blocks_of(picks).tolist())):
        bases[block] = len(arena)
        memory = bytearray(supply.block_bytes(block))
        supply.read_block(block, memoryview(memory))
        arena += memory
    return arena, bases


def parts_of(supply, picks):
    arena, bases = filled(supply, picks)
    rows = supply.task_rows(picks, np.arange(len(picks)), np.array([bases[block] for block in supply.blocks_of(picks)]))
    columns = rows[:, PARTS:].reshape(len(picks), -1, WIDTH)
    return [[bytes(arena[at : at + length]) for at, length, *_ in row.tolist()] for row in columns]


def in_shards(dataset, sample):
    shard = int(np.searchsorted(dataset.firsts, sample, side="right")) - 1
    index, parts = dataset.indexes[shard], dataset.parts[shard][sample - dataset.firsts[shard]]
    with open(dataset.paths[shard], "rb") as file:
        data = file.read()
    return [data[index.offsets[part] : index.offsets[part] + index.lengths[part]] for part in parts]


@pytest.mark.parametrize("order", ["adjacent", "grouped", "shuffled"])
@pytest.mark.parametrize("block_bytes", [1, 3_000, 1 << 20])
@settings(max_examples=25)
@given(picked=st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=40))
def test_rows_point_at_the_very_bytes_wherever_the_parts_lie(datasets, order, block_bytes, picked):
    dataset = datasets[order]
    supply = SampledBlockSource(dataset, block_bytes)
    picks = supply.draw(np.array(picked), 0)
    assert supply.own_numbers(picks).tolist() == picked
    assert parts_of(supply, picks) == [in_shards(dataset, sample) for sample in picked]
    supply.close()


def test_reads_go_from_front_to_back_whatever_the_order_of_the_picks(datasets, spied):
    supply = SampledBlockSource(datasets["adjacent"], 1 << 20)
    filled(supply, supply.draw(np.random.default_rng(0).permutation(SAMPLES)[:32], 0))
    assert spied == sorted(spied)
    assert len({shard for shard, _ in spied}) == 3
    supply.close()


def test_samples_that_lie_apart_have_a_read_each_and_neighbours_one(datasets):
    supply = SampledBlockSource(datasets["adjacent"], 1 << 20)
    filled(supply, picks := supply.draw(np.arange(0, 20, 2), 0))
    supply.deliver(picks)
    apart = supply.counted
    assert (apart.batches, apart.samples, apart.reads) == (1, 10, 10)
    assert apart.bytes_wanted < apart.bytes_read <= apart.bytes_wanted + 10 * GAP
    filled(supply, picks := supply.draw(np.arange(19, 9, -1), 10))
    supply.deliver(picks)
    together = supply.counted.since(apart)
    assert (together.batches, together.samples, together.reads) == (1, 10, 1)
    supply.close()


def test_a_block_has_a_few_reads_of_several_shards_and_not_more(datasets):
    supply = SampledBlockSource(datasets["shuffled"], 1 << 20)
    picks = supply.draw(np.arange(0, SAMPLES, 2), 0)
    blocks = supply.blocks_of(picks)
    for block in set(blocks.tolist()):
        assert sum(map(len, supply._blocks[block].reads.values())) <= MOST_READS
    assert len(set(blocks.tolist())) < 15
    supply.close()


def test_what_is_longer_than_a_block_has_one_of_its_own(datasets):
    supply = SampledBlockSource(datasets["adjacent"], 1)
    picks = supply.draw(np.arange(12), 0)
    assert len(set(supply.blocks_of(picks).tolist())) == 12
    supply.close()


def test_nothing_picked_is_nothing_read(datasets):
    supply = SampledBlockSource(datasets["adjacent"], 1 << 20)
    supply.deliver(supply.draw(np.array([], np.int64), 0))
    assert supply.counted == SampledBlockTable(batches=1)
    assert supply.waiting == 0
    supply.close()
