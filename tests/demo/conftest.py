"""Shards of the demo, as small as they can be."""

import pytest

from penstock.demo.shards import DemoSize, make

TINY = DemoSize(samples=24, batch_size=4, scale=0.0625)


@pytest.fixture(scope="session")
def lot(tmp_path_factory):
    return make(tmp_path_factory.mktemp("demo") / "shards", TINY)
