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


@pytest.mark.parametrize("world_size", [3, 5, 6, 12])
@pytest.mark.parametrize("lanes", [None, 64])
def test_any_number_of_ranks_has_every_sample_once(steps, world_size, lanes):
    ranks = steps(world_size, global_batch=4 * world_size, lanes=lanes)
    keys = [key for rank in ranks for batch in rank for key in batch]
    assert len(set(keys)) == SAMPLES
    assert len(keys) < SAMPLES + world_size


def test_padding_is_marked_on_the_last_ranks(shards):
    found = []
    for rank in range(4):
        with penstock.Loader(shards, FIELDS, 8, rank=rank, world_size=4, num_workers=0) as loader:
            found.append([batch["__padding__"].tolist() for batch in loader])
    assert found == [[[False] * 8, [False] * 4]] * 2 + [[[False] * 8, [False, False, False, True]]] * 2


@pytest.mark.parametrize(("world_size", "shuffle", "most"), [(3, True, 1.1), (6, True, 1.1), (6, False, 1.7)])
def test_ranks_together_read_hardly_more_than_one_rank(tmp_path, world_size, shuffle, most):
    shards = make_shards(tmp_path, REID, samples=600, shards=2, scale=0.05)

    def bytes_read(rank, world_size):
        settings = {"block_bytes": 4096, "lanes": 12, "page_cache": False, "executor": "thread", "num_workers": 1}
        settings |= {"rank": rank, "world_size": world_size, "shuffle": shuffle, "batch_size": 20}
        with penstock.Loader(shards, FIELDS, **loader_settings(**settings)) as loader:
            list(loader)
            return loader.stats().engine.bytes_read

    whole, read = bytes_read(0, 1), [bytes_read(rank, world_size) for rank in range(world_size)]
    assert whole <= sum(read) < most * whole
    assert max(read) < 1.2 * most * whole / world_size


def marks_and_ids(samples):
    return [(sample["id"].item(), sample["__padding__"]) for sample in samples]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_collate_fn_sees_which_samples_are_padding(shards, executor):
    settings = loader_settings(executor=executor, num_workers=1, batch_size=8, collate_fn=marks_and_ids)
    with penstock.Loader(shards, FIELDS, rank=3, world_size=4, **settings) as loader:
        batches = list(loader)
    assert [[mark for _, mark in batch] for batch in batches] == [[False] * 8, [False, False, False, True]]


@pytest.mark.parametrize("settings", [{"static_buffers": True}, {"transform": lambda sample, rng: sample}, {}])
def test_padding_is_marked_in_a_tensor_on_the_device_of_the_batch(shards, settings):
    with penstock.Loader(shards, FIELDS, 16, num_workers=0, **loader_settings(**settings)) as loader:
        marks = [batch["__padding__"].clone() for batch in loader]
    assert [tuple(mark.shape) for mark in marks] == [(16,), (16,), (14,)]
    assert not any(mark.any() for mark in marks)
    with penstock.Loader(shards, FIELDS, 16, num_workers=0, device="numpy") as loader:
        assert next(iter(loader))["__padding__"].dtype == bool


def test_a_loader_closes_itself_at_the_end_of_a_with_block(shards):
    with penstock.Loader(shards, FIELDS, 16, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        assert loader._engine is not None
    assert loader._engine is None


@pytest.mark.parametrize("name", ["__key__", "__padding__"])
def test_a_field_cannot_have_the_name_of_an_entry_that_batches_have(shards, name):
    with pytest.raises(SettingError, match=f"cannot be named '{name}'"):
        penstock.Loader(shards, {name: FIELDS["id"]}, 4)


def test_a_rank_without_a_world_size_or_above_it_is_refused(shards):
    with pytest.raises(SettingError, match="go together"):
        penstock.Loader(shards, FIELDS, 4, rank=0)
    with pytest.raises(SettingError, match="rank 2 is not below world size 2"):
        penstock.Loader(shards, FIELDS, 4, rank=2, world_size=2)
