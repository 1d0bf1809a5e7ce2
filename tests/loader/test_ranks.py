"""Several ranks share an epoch."""

import pytest
from tests.support.loader_helpers import loader_settings

import penstock
from penstock.errors import SettingError
from penstock.testing import REID, make_shards

SAMPLES = 46
FIELDS = {"id": penstock.Label(".json", key="identity")}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=4, scale=0.05)


@pytest.fixture
def steps(shards):
    """Return the keys of an epoch of a job with that many ranks, as [rank][step]."""

    def run(world_size, global_batch=8, **settings):
        settings = {"shuffle": True, "seed": 3, "executor": "thread", "num_workers": 1, "block_bytes": 1024, **settings}
        ranks = []
        for rank in range(world_size):
            loader = penstock.Loader(
                shards,
                FIELDS,
                global_batch // world_size,
                rank=rank,
                world_size=world_size,
                **loader_settings(**settings),
            )
            ranks.append([batch["__key__"] for batch in loader])
            assert len(loader) == len(ranks[-1])
            loader.close()
        return ranks

    return run


def by_step(ranks):
    """Return the keys of each step, over all ranks."""
    return [sorted(key for keys in step for key in keys) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_together_have_every_sample_once(steps, world_size):
    keys = [key for rank in steps(world_size, max_samples=44) for batch in rank for key in batch]
    assert len(keys) == len(set(keys)) == 44


@pytest.mark.parametrize("world_size", [2, 4])
def test_each_step_has_the_same_samples_on_any_number_of_ranks(steps, world_size):
    alone, ranks = by_step(steps(1, max_samples=44)), by_step(steps(world_size, max_samples=44))
    assert ranks == alone
    assert len(alone) == 6


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_all_ranks_have_batches_of_the_same_number_and_sizes(steps, world_size, drop_last):
    ranks = steps(world_size, drop_last=drop_last)
    assert len({tuple(map(len, rank)) for rank in ranks}) == 1
    assert len(ranks[0]) == (5 if drop_last else 6)


def test_a_step_that_does_not_divide_is_padded_with_the_first_samples(steps):
    ranks = steps(4)
    keys = [key for rank in ranks for batch in rank for key in batch]
    assert (len(keys), len(set(keys))) == (48, SAMPLES)
    twice = {key for key in keys if keys.count(key) == 2}
    assert twice == set(steps(1)[0][0][:2])


def test_drop_last_drops_what_does_not_fill_a_step_on_all_ranks(steps):
    keys = [key for rank in steps(4, drop_last=True) for batch in rank for key in batch]
    assert len(keys) == len(set(keys)) == 40


def test_ranks_come_from_the_launchers_environment(steps, shards, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = penstock.Loader(
        shards,
        FIELDS,
        4,
        shuffle=True,
        seed=3,
        engine=penstock.EngineOptions(executor="thread"),
        num_workers=1,
        reading=penstock.ReadOptions(block_bytes=1024),
    )
    assert [batch["__key__"] for batch in loader] == steps(2)[1]
    loader.close()


def test_ranks_that_do_not_divide_the_lanes_are_refused_with_lanes_that_do(shards):
    with pytest.raises(SettingError, match="3 ranks cannot share 64 lanes") as caught:
        penstock.Loader(shards, FIELDS, 4, rank=0, world_size=3)
    assert "lanes=66" in caught.value.advice
    assert len(penstock.Loader(shards, FIELDS, 4, rank=0, world_size=3, reading=penstock.ReadOptions(lanes=66))) == 4


def test_a_rank_without_a_world_size_or_above_it_is_refused(shards):
    with pytest.raises(SettingError, match="go together"):
        penstock.Loader(shards, FIELDS, 4, rank=0)
    with pytest.raises(SettingError, match="rank 2 is not below world size 2"):
        penstock.Loader(shards, FIELDS, 4, rank=2, world_size=2)
