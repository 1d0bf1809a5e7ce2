"""Puts the repository root, where the benchmarks are, on the path of these tests and of their child processes."""

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)


@pytest.fixture(autouse=True)
def _children_find_the_benchmarks(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ROOT)
