"""The examples are no part of the package: these tests and their children find them at the root of the tree."""

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)


@pytest.fixture(autouse=True)
def _children_find_the_examples(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ROOT)
