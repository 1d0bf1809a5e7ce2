"""A job that torchrun restarts."""

import json
from pathlib import Path

import pytest
from ranks_shards import SAMPLES, make_loader
from restarted import EVERY, KILLED_AT


@pytest.fixture
def tries(program, shards, tmp_path):
    """Return the keys of each step, as tries[attempt][rank][step]."""
    script = [Path(__file__).parent / "restarted.py", shards, tmp_path]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1]
    # torchrun's store would still hold the addresses of the ended ranks, and gloo would try them
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    program(*torchrun, *script, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", **own_store)
    files = [[tmp_path / f"try{attempt}-rank{rank}.jsonl" for rank in range(2)] for attempt in range(2)]
    return [[dict(map(json.loads, file.read_text().splitlines())) for file in ranks] for ranks in files]


@pytest.mark.slow
def test_after_a_rank_is_killed_no_sample_is_lost_or_repeated(tries, shards):
    first, second = tries
    assert max(first[1]) == KILLED_AT - 1
    resumed_at = min(second[0])
    assert resumed_at == KILLED_AT // EVERY * EVERY  # steps after the checkpoint are done again
    survived = [
        {**{step: keys for step, keys in first[rank].items() if step < resumed_at}, **second[rank]} for rank in range(2)
    ]
    keys = [key for rank in survived for batch in rank.values() for key in batch]
    assert len(keys) == len(set(keys)) == SAMPLES
    for rank in range(2):
        undisturbed = make_loader(shards, 2, rank=rank, world_size=2, executor="thread")
        assert survived[rank] == dict(enumerate(batch["__key__"] for batch in undisturbed))
        undisturbed.close()
