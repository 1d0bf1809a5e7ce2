"""Data and a model for trainings with frameworks, and a check that they leave no process behind."""

import gc

import psutil
import pytest
import torch

import penstock
from penstock.testing import REID, make_shards

SAMPLES = 22
FIELDS = {
    "image": penstock.Image(".jpg", size=8, dtype="float32"),
    "labels": penstock.Label(".json", key="identity"),
}


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=2, scale=0.05)


@pytest.fixture
def loader(make_loader, shards):
    """Make loaders of six batches per epoch, with worker processes."""

    def make(**settings):
        settings = {"batch_size": 4, "shuffle": True, "seed": 3, "executor": "process", "num_workers": 1, **settings}
        return make_loader(shards, FIELDS, **settings)

    return make


@pytest.fixture
def epochs(loader):
    """Return the keys of the first epochs, as batches, from a loader of its own."""
    plain = loader(executor="thread")
    return [[batch["__key__"] for batch in plain] for _ in range(3)]


@pytest.fixture(autouse=True)
def no_process_is_left(make_loader):
    """Check that after its loaders are closed, a test has no more child processes than before."""
    before = psutil.Process().children(recursive=True)
    yield
    make_loader.close()
    gc.collect()
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert psutil.wait_procs(left, timeout=5)[1] == []


class Tiny(torch.nn.Module):
    """A small model that returns its loss."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3 * 8 * 8, 7)

    def forward(self, image, labels):
        loss = torch.nn.functional.cross_entropy(self.layer(image.flatten(1)), labels % 7)
        return {"loss": loss}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tiny()
