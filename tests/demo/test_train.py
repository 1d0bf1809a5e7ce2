"""The demo's training in this process: the batches of its loaders, and its steps."""

from argparse import Namespace
from itertools import islice

import pytest
import torch

from penstock.demo.shards import pack_for_training
from penstock.demo.train import from_penstock, from_tars, train

SIZE = 64
STEPS = 8
"""More steps than there are shards, so that some are read a second time."""


def batches(make, folder, **options):
    settings = {"shards": folder, "size": SIZE, "batch_size": 4, "num_workers": 0, "prefetch_factor": 2}
    return list(islice(make(Namespace(**{**settings, "quality": "fast", **options})), STEPS))


@pytest.fixture(scope="module")
def plain(demo_shards):
    """The batches of the reports' loader without workers."""
    return batches(from_tars, demo_shards.folder)


def features(batches):
    return torch.stack([batch["features"] for batch in batches])


def images(batches):
    return torch.stack([batch["image"] for batch in batches]).int()


def test_images_and_features_have_the_sizes_of_the_teacher(plain):
    assert images(plain).shape == (STEPS, 4, 3, SIZE, SIZE)
    assert features(plain).shape == (STEPS, 4, 256, 4, 4)
    assert torch.equal(features(plain[:2]), features(plain[6:]))
    assert not torch.equal(features(plain[:1]), features(plain[1:2]))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_delivers_the_same_batches_in_the_same_order(demo_shards, plain, workers):
    found = batches(from_tars, demo_shards.folder, num_workers=workers)
    assert torch.equal(images(found), images(plain))
    assert torch.equal(features(found), features(plain))


def test_penstock_loader_delivers_exactly_the_same_pixels_if_requested(demo_shards, plain):
    found = batches(from_penstock, demo_shards.folder, quality="exact")
    assert torch.equal(images(found), images(plain))
    assert torch.equal(features(found), features(plain))


def test_packed_shards_give_the_same_features_and_similar_pixels(demo_shards, plain, tmp_path):
    packed = pack_for_training(demo_shards, tmp_path / "packed", SIZE)
    found = batches(from_penstock, packed.folder)
    assert torch.equal(features(found), features(plain))
    assert (images(found) - images(plain)).abs().float().mean() < 8


def test_the_losses_depend_only_on_the_batches_and_decrease(plain):
    losses = train(plain, seconds=60)
    assert len(losses) == STEPS
    assert train(plain, seconds=60) == pytest.approx(losses, rel=1e-5)  # torch sums in an order that may change
    assert losses[6] < losses[0]


def test_training_ends_after_the_given_time(plain):
    assert len(train(plain, seconds=0)) == 1
