"""Ranks that are watched by one `penstock run`."""

from pathlib import Path

import msgspec
import pytest

from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.recording.ranks import load_ranks


@pytest.mark.slow
def test_the_diagnosis_names_the_rank_that_the_others_wait_for(program, tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    script = Path(__file__).parent / "uneven.py"
    ran = program(
        *["-m", "penstock", "run", "-o", "run.jsonl", "--no-recheck-storage", *torchrun, script],
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
    assert "Rank 1 holds the others back" in " ".join(ran.stderr.split())
    ranks = load_ranks(tmp_path / "run.jsonl")
    assert [rank.run.rank for rank in ranks] == [0, 1]
    _, diagnosis = diagnose_ranks(ranks)
    found = msgspec.to_builtins(diagnosis)  # as --json prints it
    assert found["ranks"]["holder"] == 1
    zero, one = found["ranks"]["each"]
    assert (zero["rank"], one["rank"]) == (0, 1)
    assert one["last"] > zero["last"]
    assert found["ranks"]["exposed_s"] >= one["waited_s"]
    assert found["impact"]["waited_s"] >= found["ranks"]["exposed_s"]
