"""Puts the repository root, where the examples are, on the path of these tests and of their child processes."""

import gc
import sys
from pathlib import Path

import pytest
import torch

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)


@pytest.fixture(autouse=True)
def _examples_on_the_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ROOT)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    gc.collect()  # collected loaders end their workers
