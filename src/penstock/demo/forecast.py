"""Predicts the rate of the demo's training with penstock.Loader before it runs.

The plan is about torch's DataLoader. For penstock.Loader, the same model gets what was measured: the step's own time
from the watched run, and the cost of a sample from decoding some from memory on all cores. The bytes are in the page
cache, and batches are passed on where they are in shared memory: neither costs anything here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock.core.cores import usable_cores
from penstock.data.fields import Array, Field, Image
from penstock.diagnose.evidence.evidence import Evidence
from penstock.plan.predict import predict
from penstock.plan.scenario_from_evidence import samples_per_batch
from penstock.probe.decode import input_from_shard, probe_decode
from penstock.probe.results import DecodePoint

PROBE_S = 3.0
"""Seconds of the decode probe; half of it is decoding, the rest is starting processes."""
PREFETCH = 2
"""Batches per worker; where all samples cost the same, the rate hardly depends on it."""


def training_fields(image_size: int) -> dict[str, Field]:
    """Return the fields as the training script declares them."""
    return {"image": Image(".jpg", size=image_size), "features": Array("_features.npz", key="features")}


def forecast_samples_s(evidence: Evidence, shard: Path, image_size: int) -> float | None:
    """Return the predicted samples per second of the training with penstock.Loader on shards like this one."""
    decode_input = input_from_shard(shard, training_fields(image_size))
    point = probe_decode(decode_input, workers=[usable_cores()], budget_s=PROBE_S).points[-1]
    return expected_samples_s(evidence, point)


def expected_samples_s(evidence: Evidence, point: DecodePoint) -> float | None:
    """Return the rate with the workers and the cost per sample of a decode probe; None if no batch was recorded."""
    if evidence.workload is None:
        return None
    per_batch, nothing = samples_per_batch(evidence), np.zeros(1)
    workload = evidence.workload.replace(
        workers=point.workers,
        prefetch=PREFETCH,
        cpu_s=np.full(1, per_batch * point.cpu_s_per_sample),
        latency_s=nothing,
        receive_s=nothing,
    )
    return predict(workload, per_batch).samples_s
