"""ShardDataset and ShardStream, run by torch's DataLoader."""

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

import penstock
import penstock.errors
from penstock.data.fields import Image, Label
from penstock.datasets import ShardDataset, ShardStream
from penstock.testing import REID, make_shards

FIELDS = {"image": Image(".jpg", size=(32, 16), fit="stretch"), "id": Label(".json", key="identity")}
SAMPLES = 30


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    make_shards(folder, REID, samples=SAMPLES, shards=3, order="grouped", scale=0.25)
    return folder


def keys_of(loader):
    return [key for batch in loader for key in batch["__key__"]]


def test_a_dataset_returns_the_same_sample_by_index_in_any_worker(shards):
    dataset = ShardDataset(shards, FIELDS)
    alone = [dataset[number] for number in range(len(dataset))]
    assert len({sample["__key__"] for sample in alone}) == len(dataset) == SAMPLES
    loader = DataLoader(dataset, batch_size=7, num_workers=2)
    images = torch.cat([batch["image"] for batch in loader])
    assert torch.equal(images, torch.stack([sample["image"] for sample in alone]))


@pytest.mark.parametrize("setting", [{"gpu_transform": penstock.GpuTransform()}, {"decode": "gpu"}])
@pytest.mark.parametrize("kind", [ShardDataset, ShardStream])
def test_settings_that_work_on_batches_are_refused_for_single_samples(shards, kind, setting):
    with pytest.raises(penstock.errors.SettingError, match="Loader's batches"):
        kind(shards, {"image": Image(".jpg", size=32, **setting)})


def test_a_dataset_can_be_sent_to_spawned_workers(shards):
    dataset = ShardDataset(shards, FIELDS)
    dataset[0]  # a file is open now, and is not sent
    loader = DataLoader(dataset, batch_size=8, num_workers=1, multiprocessing_context="spawn")
    assert keys_of(loader) == [dataset[number]["__key__"] for number in range(SAMPLES)]


def test_a_dataset_can_be_sent_to_the_workers_of_a_loader(shards):
    dataset = ShardDataset(shards, FIELDS)
    loader = penstock.Loader(dataset, batch_size=8, num_workers=1, engine=penstock.EngineOptions(executor="process"))
    assert keys_of(loader) == [dataset[number]["__key__"] for number in range(SAMPLES)]
    loader.close()


def test_a_dataset_is_read_in_the_order_of_a_sampler(shards):
    dataset = ShardDataset(shards, FIELDS)
    order = list(RandomSampler(dataset, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(dataset, batch_size=8, sampler=order)
    assert keys_of(loader) == [dataset[number]["__key__"] for number in order]


def test_a_negative_index_counts_from_the_end_and_one_past_the_end_is_an_error(shards):
    dataset = ShardDataset(shards, FIELDS)
    assert dataset[-1]["__key__"] == dataset[SAMPLES - 1]["__key__"]
    with pytest.raises(IndexError):
        dataset[SAMPLES]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # three workers on two cores
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_stream_gives_every_sample_once_over_ranks_and_workers(shards, workers, world_size):
    keys = []
    for rank in range(world_size):
        stream = ShardStream(shards, FIELDS, shuffle=True, rank=rank, world_size=world_size)
        own = keys_of(DataLoader(stream, batch_size=4, num_workers=workers))
        assert len(own) == len(stream)
        keys += own
    assert len(keys) == len(set(keys)) == SAMPLES


def test_a_stream_has_a_new_order_in_each_epoch_and_the_same_order_in_the_same_epoch(shards):
    stream = ShardStream(shards, FIELDS, shuffle=True, seed=5)
    first, again = keys_of(DataLoader(stream, batch_size=4)), keys_of(DataLoader(stream, batch_size=4))
    stream.set_epoch(1)
    other = keys_of(DataLoader(stream, batch_size=4))
    assert first == again != other
    assert sorted(first) == sorted(other)
