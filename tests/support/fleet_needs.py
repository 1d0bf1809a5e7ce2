"""The needs of a rank, a cluster to run it on, and results of probes, in round numbers."""

import numpy as np

from penstock.plan.fleet.cluster import Cluster
from penstock.plan.fleet.rank_need import RankNeed
from penstock.probe.results import DecodePoint, DecodeRates, IpcCost, ProbedValues

BATCH, BATCH_BYTES, STEP_S = 10, 10_000_000.0, 0.1


def need(**changes):
    fields = {
        "source": "recording",
        "samples_per_batch": float(BATCH),
        "cpu_s": np.full(20, 0.2),
        "waited_s": np.full(20, 0.05),
        "step_s": np.full(20, STEP_S),
        "step_cpu_s": np.zeros(20),
        "batch_bytes": BATCH_BYTES,
        "batch_requests": 100.0,
        "workers": 4,
        "prefetch": 2,
        "cores": 64.0,
        "samples": 1e6,
    }
    return RankNeed(**{**fields, **changes})


def site(nodes=4, gpus=8, **limits):
    return Cluster(nodes=nodes, gpus_per_node=gpus, **limits)


def probed(**changes):
    """Return probe results for samples of 100 kB that take 10 ms to decode, in batches of 8."""
    decode = DecodeRates(
        points=(DecodePoint(1, 100.0, 0.01),),
        sample_bytes=100_000.0,
        decoded_bytes=150_000,
        samples=16,
        bad=0,
        source="a.tar",
        seconds=6.0,
    )
    ipc = IpcCost(
        batch_size=8, batch_bytes=1_200_000, arrays=1, batches=100, batch_s=0.0005, main_cpu_s=0.0, seconds=1.0
    )
    machine = {"machine": {"usable_cores": 8, "gpus": [], "platform": "Linux x86_64"}}
    return ProbedValues(**{"decode": decode, "ipc": ipc, "fingerprint": machine, **changes})
