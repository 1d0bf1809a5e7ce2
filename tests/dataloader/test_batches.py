"""Batches of penstock.DataLoader are those of torch's DataLoader."""

import gc

import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DataLoader
from tests.dataloader.samples import KINDS, Numbers, Samples, outcomes, same


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_errors_of_every_kind_of_sample_equal_torchs(kind):
    expected = outcomes(torch.utils.data.DataLoader(Samples(kind), batch_size=4, num_workers=1))
    assert same(outcomes(DataLoader(Samples(kind), batch_size=4, num_workers=2)), expected)


@settings(max_examples=15)
@given(
    kind=st.sampled_from(["tensor", "tuple", "dict", "int or float", "extra key"]),
    length=st.integers(0, 40),
    batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    workers=st.integers(1, 2),
    prefetch=st.integers(1, 3),
    persistent=st.booleans(),
    seed=st.integers(0, 2**31),
    generator=st.booleans(),
)
def test_the_same_settings_and_seed_give_the_same_epochs_as_torch(
    kind, length, batch_size, shuffle, drop_last, workers, prefetch, persistent, seed, generator
):
    epochs = []
    for loader_class in (torch.utils.data.DataLoader, DataLoader):
        torch.manual_seed(seed)
        loader = loader_class(
            Samples(kind, max(1, length)),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=workers,
            prefetch_factor=prefetch,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(seed) if generator else None,
        )
        epochs.append([outcomes(loader), outcomes(loader), len(loader), torch.initial_seed(), torch.rand(1)])
    assert same(epochs[1], epochs[0])


def test_a_batch_stays_valid_while_it_is_held():
    loader = DataLoader(Samples("tensor", 200), batch_size=2, num_workers=2)
    held = list(loader)
    gc.collect()
    expected = list(torch.utils.data.DataLoader(Samples("tensor", 200), batch_size=2))
    assert same(held, expected)


def test_a_view_of_a_batch_keeps_its_memory():
    iterator = iter(DataLoader(Samples("tensor", 400), batch_size=4, num_workers=2))
    view = next(iterator)[1:3, 0]
    before = view.clone()
    assert sum(1 for _ in iterator) == 99
    assert torch.equal(view, before)


def test_a_batch_can_be_written_to():
    for batch in DataLoader(Samples("tensor", 40), batch_size=4, num_workers=2):
        batch += 1
        assert batch.min() >= 1


@pytest.mark.parametrize(
    "batch_sampler",
    [
        [[3, 1], [0], [2, 2, 2, 4]],
        [(3, 1), (0,)],
        [torch.tensor([1, 2]), torch.tensor([0])],
        [["a", "bc"], ["d"]],
        [[(1, "x"), (2, "y")], [(0, "z")]],
        [[], [1]],
    ],
    ids=["lists", "tuples", "tensors", "keys", "pairs", "empty"],
)
def test_a_batch_sampler_may_give_anything_that_the_dataset_accepts(batch_sampler):
    class Keyed:
        def __getitem__(self, key):
            return str(key)

        def __len__(self):
            return 5

    expected = outcomes(torch.utils.data.DataLoader(Keyed(), batch_sampler=batch_sampler, num_workers=1))
    assert same(outcomes(DataLoader(Keyed(), batch_sampler=batch_sampler, num_workers=2)), expected)


def test_a_collate_fn_gets_whole_batches_and_its_result_is_delivered_as_it_is():
    def collate(samples):
        return {"values": torch.stack([torch.full((1000,), float(s)) for s in samples]), "ids": tuple(samples)}

    batches = list(DataLoader(Numbers(10), batch_size=4, num_workers=2, collate_fn=collate))
    assert [batch["ids"] for batch in batches] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    assert batches[1]["values"].shape == (4, 1000)
    assert batches[1]["values"][:, 999].tolist() == [4, 5, 6, 7]


def test_tensors_that_share_memory_in_a_batch_still_do():
    def collate(samples):
        whole = torch.arange(2000.0)
        return whole, whole[5:10]

    whole, part = next(iter(DataLoader(Numbers(2), num_workers=1, collate_fn=collate)))
    part[0] = -1
    assert whole[5] == -1


def test_batches_larger_than_a_slab_get_memory_of_their_own(monkeypatch):
    monkeypatch.setattr("penstock.runtime.batch_collector.SLAB_BYTES", 1 << 16)

    class Large:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.full((10_000,), float(index))

    for collate_fn in (None, torch.stack):
        batches = list(DataLoader(Large(), batch_size=2, num_workers=2, collate_fn=collate_fn))
        assert [batch[:, 0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert all(batch.shape == (2, 10_000) for batch in batches)
    batches = list(DataLoader(Large(), batch_sampler=[[0], [1, 2, 3], [4]], num_workers=2))
    assert [batch[:, 9999].tolist() for batch in batches] == [[0], [1, 2, 3], [4]]


def test_large_text_is_delivered_whole():
    class Text:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return index, str(index) * 300_000

    batches = list(DataLoader(Text(), batch_size=4, num_workers=2))
    assert [len(text) for _, texts in batches for text in texts] == [300_000] * 8
    assert batches[1][1][3][0] == "7"


def test_getitems_of_a_dataset_makes_whole_batches():
    class Together(Numbers):
        def __getitems__(self, indices):
            return [torch.tensor([index, len(indices)]) for index in indices]

    batches = list(DataLoader(Together(6), batch_size=4, num_workers=2))
    assert [batch.tolist() for batch in batches] == [[[0, 4], [1, 4], [2, 4], [3, 4]], [[4, 2], [5, 2]]]


def test_a_subset_is_made_sample_by_sample():
    subset = torch.utils.data.Subset(Samples("dict"), range(3, 20))
    expected = list(torch.utils.data.DataLoader(subset, batch_size=4))
    assert same(list(DataLoader(subset, batch_size=4, num_workers=2)), expected)


def test_functions_that_users_add_to_default_collate_are_used(monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    class Mark:
        pass

    monkeypatch.setitem(default_collate_fn_map, Mark, lambda batch, *, collate_fn_map=None: len(batch))

    class Marks(Numbers):
        def __getitem__(self, index):
            return index, Mark()

    batches = list(DataLoader(Marks(5), batch_size=3, num_workers=1))
    assert [(batch[0].tolist(), batch[1]) for batch in batches] == [([0, 1, 2], 3), ([3, 4], 2)]
