"""The examples are no part of the package: these tests and their children find them at the root of the tree."""

import gc
import sys
from pathlib import Path

import pytest
import torch

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)


@pytest.fixture(autouse=True)
def _children_find_the_examples(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ROOT)


@pytest.fixture(autouse=True)
def _one_thread_and_nothing_left():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    gc.collect()  # loaders end their workers when they go
