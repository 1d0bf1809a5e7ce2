"""A Loader in the workers of Ray Train, in a Ray cluster on this machine."""

import json
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
from ranks_shards import SAMPLES, make_loader

NEEDED = ("ray", "pandas", "pyarrow")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="Ray Train needs `pip install 'ray[train]'`"),
]


def test_workers_of_ray_train_are_ranks_and_share_an_epoch(program, shards, tmp_path):
    script = Path(__file__).parent / "trained_by_ray.py"
    program(script, shards, tmp_path, RAY_USAGE_STATS_ENABLED="0", GLOO_SOCKET_IFNAME="lo")
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [each["ranks"] for each in found] == [[0, 2], [1, 2]]
    assert [each["local"] for each in found] == [[0, 2], [1, 2]]
    keys = [key for each in found for batch in each["batches"] for key in batch]
    assert len(keys) == len(set(keys)) == SAMPLES
    alone = make_loader(shards, 1, executor="thread")
    together = zip(*(each["batches"] for each in found), strict=True)
    assert [sorted(chain(*step)) for step in together] == [sorted(batch["__key__"]) for batch in alone]
    alone.close()
