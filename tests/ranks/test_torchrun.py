"""A job that torchrun starts again."""

import json
from pathlib import Path

import pytest
from ranks_material import SAMPLES, make_loader
from restarted import EVERY, KILLED_AT


@pytest.fixture
def tries(program, shards, tmp_path):
    """What was consumed in try a by rank r: {step: keys}."""
    script = [Path(__file__).parent / "restarted.py", shards, tmp_path]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1]
    # torchrun's own store would still hold the addresses of the ranks that are gone, and gloo would try them
    apart = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    program(*torchrun, *script, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", **apart)
    files = [[tmp_path / f"try{attempt}-rank{rank}.jsonl" for rank in range(2)] for attempt in range(2)]
    return [[dict(map(json.loads, file.read_text().splitlines())) for file in ranks] for ranks in files]


@pytest.mark.slow
def test_a_killed_rank_costs_no_sample_and_doubles_none(tries, shards):
    first, second = tries
    assert max(first[1]) == KILLED_AT - 1
    began = min(second[0])
    assert began == KILLED_AT // EVERY * EVERY  # what lay behind the checkpoint is done again
    survived = [
        {**{step: keys for step, keys in first[rank].items() if step < began}, **second[rank]} for rank in range(2)
    ]
    keys = [key for rank in survived for batch in rank.values() for key in batch]
    assert len(keys) == len(set(keys)) == SAMPLES
    for rank in range(2):
        undisturbed = make_loader(shards, 2, rank=rank, world_size=2, executor="thread")
        assert survived[rank] == dict(enumerate(batch["__key__"] for batch in undisturbed))
        undisturbed.close()
