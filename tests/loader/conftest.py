"""A module of map-style datasets, and loaders over them."""

import sys

import pytest
from tests.support.loader_helpers import loader_settings

import penstock

DATASETS = """
import os, random, sys
import numpy as np

class Images:
    # Nested samples, made without torch.
    def __init__(self, length=30, bad=(), killers=()):
        self.length, self.bad, self.killers = length, bad, killers

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"no image {index}")
        if index in self.killers:
            os._exit(3)
        image = np.full((3, 4), index, np.float32)
        return {"image": image, "label": (index, f"name {index}"), "share": index / 7}

class Modules(Images):
    def __getitem__(self, index):
        return {"torch": "torch" in sys.modules, "pid": os.getpid()}

class Random(Images):
    def __getitem__(self, index):
        return index, random.random(), np.random.random()

def names(batch):
    return {"pid": os.getpid(), "names": [sample["label"][1] for sample in batch]}

def jitter(sample, rng):
    return {"image": sample["image"] + rng.random(dtype=np.float32), "label": sample["label"][0]}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A module of datasets that worker processes can import."""
    folder = tmp_path_factory.mktemp("datasets")
    (folder / "penstock_test_datasets.py").write_text(DATASETS)
    sys.path.insert(0, str(folder))
    yield __import__("penstock_test_datasets")
    sys.path.remove(str(folder))
    del sys.modules["penstock_test_datasets"]


@pytest.fixture
def dataset_loader():
    """Make loaders over datasets, and close them."""
    made = []

    def make(dataset, **settings):
        settings = {"executor": "thread", "num_workers": 2, **settings}
        if "batch_sampler" not in settings:
            settings.setdefault("batch_size", 4)
        made.append(penstock.Loader(dataset, **loader_settings(**settings)))
        return made[-1]

    yield make
    for each in made:
        each.close()
