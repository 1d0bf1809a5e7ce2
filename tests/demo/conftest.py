"""Shards of the demo, as small as possible."""

import pytest

from penstock.demo.shards import DemoSize, make_demo_shards

TINY = DemoSize(samples=24, batch_size=4, scale=0.0625)


@pytest.fixture(scope="session")
def demo_shards(tmp_path_factory):
    return make_demo_shards(tmp_path_factory.mktemp("demo") / "shards", TINY)
