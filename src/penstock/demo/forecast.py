"""What penstock.Loader should make of the training, said before it runs.

The plan speaks of torch's DataLoader. For ours the same model is asked, with what was measured: the step's own time,
from the watched run, and what a sample costs, decoded from memory on all cores. Bytes are in the page cache, batches
are handed over where they lie: neither costs anything here.
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
"""Half of it is decoding, the rest starting processes."""
AHEAD = 2
"""Batches per worker; the rate hangs little on it where all samples cost the same."""


def fields_of(image_size: int) -> dict[str, Field]:
    """As the training declares them."""
    return {"image": Image(".jpg", size=image_size), "features": Array("_features.npz", key="features")}


def loader_samples_s(seen: Evidence, shard: Path, image_size: int) -> float | None:
    """Of the training that was seen, with penstock.Loader on shards like this one."""
    decode_input = input_from_shard(shard, fields_of(image_size))
    point = probe_decode(decode_input, workers=[usable_cores()], budget_s=PROBE_S).points[-1]
    return expected_samples_s(seen, point)


def expected_samples_s(seen: Evidence, point: DecodePoint) -> float | None:
    """As many workers as were probed, whose samples cost what they did there; None where no batch was seen."""
    if seen.workload is None:
        return None
    per_batch, nothing = samples_per_batch(seen), np.zeros(1)
    ours = seen.workload.replace(
        workers=point.workers,
        prefetch=AHEAD,
        cpu_s=np.full(1, per_batch * point.cpu_s_per_sample),
        latency_s=nothing,
        receive_s=nothing,
    )
    return predict(ours, per_batch).samples_s
