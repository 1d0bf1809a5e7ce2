"""Identity-balanced batches: their content, epochs and ranks, resuming, use in loaders."""

import json
import logging
from collections import Counter

import numpy as np
import pytest
import torch
from tests.support.metadata_tables import random_table, table_of
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.data.fields import Label
from penstock.data.read import page_cache_read
from penstock.datasets import ShardDataset
from penstock.errors import SettingError
from penstock.samplers import MetadataTable, PKColumns, PKSampler, read_metadata
from penstock.testing import REID, make_shards

P, K = 4, 4


def values(table, name, batch):
    return [table.column(name).value(sample) for sample in batch]


def identities(table, batch):
    return [values(table, "identity", batch[at : at + K]) for at in range(0, len(batch), K)]


def test_a_batch_has_p_identities_with_k_samples_each():
    table = random_table()
    sampler = PKSampler(table, P, K)
    batches = list(sampler)
    assert len(batches) == len(sampler) > 20
    for batch in batches:
        groups = identities(table, batch)
        assert len(groups) == P == len({group[0] for group in groups})
        assert all(len(group) == K == group.count(group[0]) for group in groups)
        assert all(type(sample) is int for sample in batch)


def test_most_samples_occur_once_an_epoch_and_none_twice():
    table = random_table()
    drawn = [sample for batch in PKSampler(table, P, K) for sample in batch]
    assert len(drawn) == len(set(drawn))
    assert len(drawn) > 0.85 * len(table)


def test_every_sample_occurs_within_some_epochs():
    table = random_table()
    sampler = PKSampler(table, P, K)
    assert {sample for _ in range(8) for batch in sampler for sample in batch} == set(range(len(table)))


def test_ensure_gives_each_identity_of_a_batch_that_modality():
    table = random_table(modalities=("ir", "ir", "ir", "sketch", "rgb"))
    plain = [
        values(table, "modality", batch[at : at + K]) for batch in PKSampler(table, P, K) for at in range(0, 16, 4)
    ]
    assert not all("rgb" in modalities for modalities in plain), "without `ensure` some identities lack it"
    for batch in PKSampler(table, P, K, ensure="rgb"):
        assert all("rgb" in values(table, "modality", batch[at : at + K]) for at in range(0, len(batch), K))


def test_an_identity_without_the_ensured_modality_is_left_out_and_counted():
    table = table_of("rrrr", "iiii", "riii", "ssrr")
    sampler = PKSampler(table, 3, 2, ensure="rgb")
    assert sampler.summary.left_out == 1
    assert {number for batch in sampler for number in values(table, "identity", batch)} == {0, 2, 3}


def test_with_prefer_complete_only_samples_of_incomplete_identities_wait():
    table = table_of("rirs", "rrii", "srir", "rrrr", "irrs")
    sampler = PKSampler(table, 3, 4, prefer_complete=True)
    assert len(sampler) == 1
    for _ in range(5):
        (batch,) = sampler
        assert set(values(table, "identity", batch)) == {0, 2, 4}


def test_complete_identities_are_spread_over_the_batches():
    table = table_of(*["rrii"] * 12, *["rrrr"] * 12)
    for batch in PKSampler(table, 4, 2, prefer_complete=True):
        complete = {number for number in values(table, "identity", batch) if number < 12}
        assert len(complete) == 2


def test_too_few_samples_are_repeated():
    table = table_of("r", "ri", "rrii")
    sampler = PKSampler(table, 3, 4)
    (batch,) = sampler
    assert [len(set(batch[at : at + 4])) for at in range(0, 12, 4)].count(4) == 1
    assert Counter(values(table, "identity", batch)) == {0: 4, 1: 4, 2: 4}
    assert sampler.summary.short == 2


def test_modalities_are_optional():
    table = MetadataTable.of(pid=[number % 5 for number in range(50)])
    sampler = PKSampler(table, 2, 5, columns=PKColumns(identity="pid"))
    assert len(list(sampler)) == 5
    assert sampler.summary.pairable == 5


def test_the_summary_counts_identities_batches_and_waiting_samples():
    table = table_of("rrii", "rrrr", "iiss", "r", "rris")
    found = PKSampler(table, 2, 4, ensure="rgb").summary
    assert (found.identities, found.pairable, found.left_out, found.short) == (5, 3, 1, 1)
    assert (found.batches, found.waiting) == (2, 0)
    assert str(found) == (
        "5 identities, 3 pairable (60.0%), 1 left out because they lack the ensured modality, "
        "1 with too few samples, which are repeated; 2 batches an epoch, 0 samples wait for another epoch"
    )


# -- epochs and ranks ------------------------------------------------------------------------------------------


def test_the_order_depends_on_seed_and_epoch_and_each_iteration_is_the_next_epoch():
    one, same, other = (PKSampler(random_table(), P, K, seed=seed) for seed in (1, 1, 2))
    first, second = list(one), list(one)
    assert first == list(same) != list(other)
    assert first != second
    same.set_epoch(1)
    same.set_epoch(1)
    assert list(same) == second


def test_an_iteration_that_was_left_early_is_not_continued():
    sampler, same = (PKSampler(random_table(), P, K) for _ in range(2))
    next(iter(sampler))
    assert sampler.epoch == 0
    same.set_epoch(1)
    assert list(sampler) == list(same)
    sampler.set_epoch(0)
    same.set_epoch(0)
    assert list(sampler) == list(same)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_have_equally_many_batches_and_no_sample_in_common(world_size):
    table = random_table()
    ranks = [list(PKSampler(table, P, K, rank=rank, world_size=world_size)) for rank in range(world_size)]
    alone = list(PKSampler(table, P, K))
    assert {len(rank) for rank in ranks} == {len(alone) // world_size}
    drawn = [sample for rank in ranks for batch in rank for sample in batch]
    assert len(drawn) == len(set(drawn))
    together = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert together == alone[: len(together)]


def test_ranks_come_from_the_launchers_environment(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(PKSampler(random_table(), P, K)) == list(PKSampler(random_table(), P, K, rank=1, world_size=2))


# -- resuming --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 7, 10**6])
def test_a_loaded_state_continues_with_the_next_batch(after):
    sampler = PKSampler(random_table(), P, K)
    list(sampler)
    expected = []
    for number, batch in enumerate(sampler):
        if number >= after:
            expected.append(batch)
    state = json.loads(json.dumps(sampler.state_dict(batches=min(after, len(sampler)))))
    other = PKSampler(random_table(), P, K)
    other.load_state_dict(state)
    following = list(other)
    if after < len(sampler):
        assert (other.epoch, following) == (1, expected)
    else:
        assert (other.epoch, following) == (2, list(sampler))


def test_a_state_without_a_number_of_batches_is_after_those_that_were_drawn():
    sampler, other = (PKSampler(random_table(), P, K) for _ in range(2))
    batches = iter(sampler)
    drawn = [next(batches) for _ in range(3)]
    other.load_state_dict(sampler.state_dict())
    assert list(other) == list(batches)
    assert len(drawn) == 3


def test_the_state_is_the_same_on_every_rank():
    ranks = [PKSampler(random_table(), P, K, rank=rank, world_size=2) for rank in range(2)]
    for sampler in ranks:
        batches = iter(sampler)
        for _ in range(3):
            next(batches)
    alone = PKSampler(random_table(), P, K)
    whole = list(alone)
    assert ranks[0].state_dict() == ranks[1].state_dict() == alone.state_dict(batches=6)
    alone.load_state_dict(ranks[0].state_dict())
    assert list(alone) == whole[6:]


def test_an_epoch_that_is_set_during_an_iteration_is_the_next_one():
    sampler, other = (PKSampler(random_table(), P, K) for _ in range(2))
    batches = iter(sampler)
    next(batches)
    sampler.set_epoch(5)
    next(batches)
    other.set_epoch(5)
    assert list(sampler) == list(other)


def test_a_resumed_sampler_counts_batches_from_where_it_resumed():
    first, second, third = (PKSampler(random_table(), P, K) for _ in range(3))
    whole = list(first)
    second.load_state_dict(first.state_dict(batches=5))
    list(second)
    third.load_state_dict(second.state_dict(batches=2))
    assert list(third) == whole[7:]


def test_setting_the_epoch_of_a_loaded_state_keeps_its_position():
    sampler, other = (PKSampler(random_table(), P, K) for _ in range(2))
    whole = list(sampler)
    other.load_state_dict(sampler.state_dict(batches=5))
    other.set_epoch(0)
    assert list(other) == whole[5:]


def test_a_state_can_be_loaded_on_another_number_of_ranks():
    table = random_table()
    whole = list(PKSampler(table, P, K))
    two = PKSampler(table, P, K, rank=0, world_size=2)
    list(two)
    state = two.state_dict(batches=3)
    three = [PKSampler(table, P, K, rank=rank, world_size=3) for rank in range(3)]
    for sampler in three:
        sampler.load_state_dict(state)
    steps = zip(*map(list, three), strict=True)
    rest = [batch for step in steps for batch in step]
    assert rest == whole[6 : 6 + len(rest)]
    assert len(whole) - 6 - len(rest) < 3


@pytest.mark.parametrize("settings", [{"seed": 3}, {"ensure": "rgb"}, {"prefer_complete": True}])
def test_a_state_of_other_settings_is_refused(settings):
    state = PKSampler(random_table(), P, K).state_dict()
    with pytest.raises(SettingError, match=next(iter(settings))):
        PKSampler(random_table(), P, K, **settings).load_state_dict(state)


def test_a_state_of_other_metadata_is_refused():
    state = PKSampler(random_table(), P, K).state_dict()
    with pytest.raises(SettingError, match="state"):
        PKSampler(random_table(seed=1), P, K).load_state_dict(state)


# -- in loaders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_torch_dataloader_accepts_it_as_batch_sampler(workers):
    table = random_table()
    loader = DataLoader(
        TensorDataset(torch.arange(len(table))), batch_sampler=PKSampler(table, P, K), num_workers=workers
    )
    seen = [[batch.tolist() for (batch,) in loader] for _ in range(2)]
    sampler = PKSampler(table, P, K)
    assert seen == [list(sampler), list(sampler)]
    assert len(loader) == len(sampler)


def test_a_penstock_loader_accepts_it_sets_its_epoch_and_resumes_it():
    table = random_table()

    def loader():
        return penstock.Loader(
            TensorDataset(torch.arange(len(table))),
            batch_sampler=PKSampler(table, P, K),
            engine=penstock.EngineOptions(executor="thread"),
            num_workers=1,
        )

    expected = PKSampler(table, P, K)
    epochs = [list(expected) for _ in range(3)]
    first, second = loader(), loader()
    assert [batch.tolist() for (batch,) in first] == epochs[0]
    for number, (batch,) in enumerate(first):
        assert batch.tolist() == epochs[1][number]
        if number == 4:
            break
    second.load_state_dict(first.state_dict())
    assert [batch.tolist() for (batch,) in second] == epochs[1][5:]
    second.set_epoch(2)
    assert [batch.tolist() for (batch,) in second] == epochs[2]
    first.close()
    second.close()


def test_samples_of_a_shard_dataset_are_those_of_the_metadata(tmp_path):
    make_shards(tmp_path, REID, samples=60, shards=3, scale=0.05)
    dataset = ShardDataset(tmp_path, {"id": Label(".json", key="identity")})
    sampler = PKSampler(read_metadata(dataset, ".json"), 3, 2)
    for batch in DataLoader(dataset, batch_sampler=sampler):
        pairs = batch["id"].reshape(3, 2)
        assert (pairs[:, 0] == pairs[:, 1]).all()
        assert len(pairs[:, 0].unique()) == 3


def test_a_loader_over_shards_logs_the_cost_of_the_order(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(page_cache_read, "is_in_memory", lambda _dataset: False)
    make_shards(tmp_path, REID, samples=60, shards=3, scale=0.05)
    fields = {"id": Label(".json", key="identity")}
    sampler = PKSampler(read_metadata(ShardDataset(tmp_path, fields), ".json"), 3, 2)
    loader = penstock.Loader(
        tmp_path, fields, batch_sampler=sampler, engine=penstock.EngineOptions(executor="thread"), num_workers=1
    )
    with caplog.at_level(logging.INFO, "penstock"):
        for epoch in range(2):
            batches = [batch["id"] for batch in loader]
            messages = [each.message for each in caplog.records if each.message.startswith("read by a sampler")]
            assert len(messages) == epoch + 1
    counts = loader._source.block_source.counts
    assert counts.batches == 2 * len(batches) == 2 * len(sampler)
    assert counts.samples == 6 * counts.batches
    assert (
        1 <= counts.reads / counts.batches <= 3
    )  # one for each shard that a batch has samples of, because they are short
    assert f"each of {len(sampler)} batches: 6 samples in" in messages[-1]
    assert f"by a sampler (each of {counts.batches} batches: 6 samples" in repr(loader)
    loader.close()


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((0, 4), {}, "identities=0"),
        ((4, True), {}, "instances"),
        ((4, 2.0), {}, "instances"),
        ((4, 2), {"seed": -1}, "seed"),
        ((4, 2), {"rank": 0}, "go together"),
        ((4, 2), {"ensure": "thermal"}, "rgb"),
        ((9, 2), {}, "needs 9 identities, and there are 3"),
        ((3, 2), {"ensure": "sketch"}, "there are 1 with 'sketch'"),
        ((3, 2), {"columns": PKColumns(identity="pid")}, "no column 'pid'"),
        ((3, 2), {"rank": 0, "world_size": 4}, "4 ranks"),
    ],
)
def test_impossible_settings_are_refused_with_the_reason(arguments, settings, message):
    table = table_of("rrii", "rrrr", "iiss")
    with pytest.raises(SettingError) as caught:
        PKSampler(table, *arguments, **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("settings", [{"ensure": "rgb"}, {"prefer_complete": True}])
def test_settings_for_modalities_need_a_column_of_modalities(settings):
    with pytest.raises(SettingError, match="modality"):
        PKSampler(MetadataTable.of(identity=[1, 1, 2, 2]), 2, 2, **settings)


def test_ten_thousand_samples_of_one_identity_do_not_crowd_out_the_others():
    rng = np.random.default_rng(0)
    identity = np.concatenate((np.zeros(10_000, np.int64), rng.integers(1, 40, 800)))
    sampler = PKSampler(MetadataTable.of(identity=identity), P, K)
    batches = np.array(list(sampler))
    owners = identity[batches.reshape(-1, P, K)[:, :, 0]]
    assert (np.sort(owners, axis=1)[:, 1:] != np.sort(owners, axis=1)[:, :-1]).all()
    assert len(np.unique(owners)) == 40
