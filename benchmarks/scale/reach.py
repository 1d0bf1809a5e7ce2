"""One training, from 1 to 1024 GPUs: on paper and in simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.format import format_byte_rate, format_number
from penstock.plan.fleet.cluster import Cluster, cache_hit_share, cluster_bounds, fleet_demand
from penstock.plan.fleet.forecast import BLOCK_BYTES, forecast_epoch, plan_lanes
from penstock.plan.fleet.rank_need import RankNeed

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PER_NODE = 8
BATCHES = 200
"""That ranks draw from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a rank asks for, in words that can be checked."""

    name: str
    batch: int
    step_s: float
    sample_bytes: float
    cpu_s: float
    """Of a core, per sample."""
    samples: float
    workers: int
    variation: float = 0.05
    """Of steps and of batches: standard deviation over mean."""

    def need(self) -> RankNeed:
        random = np.random.default_rng(0)
        uneven = np.maximum(random.normal(1.0, self.variation, (2, BATCHES)), 0.1)
        read = self.batch * self.sample_bytes
        return RankNeed(
            source="probes",
            samples_per_batch=float(self.batch),
            cpu_s=self.batch * self.cpu_s * uneven[0],
            waited_s=np.zeros(BATCHES),
            step_s=self.step_s * uneven[1],
            step_cpu_s=np.zeros(BATCHES),
            batch_bytes=read,
            batch_requests=read / BLOCK_BYTES,
            workers=self.workers,
            prefetch=2,
            cores=128.0,
            samples=self.samples,
        )


PICTURES = Training(
    name="pictures", batch=256, step_s=0.25, sample_bytes=110e3, cpu_s=0.0012, samples=1.28e6, workers=4
)
FEATURES = Training(
    name="pictures with features", batch=24, step_s=0.06, sample_bytes=2.9e6, cpu_s=0.0096, samples=11e6, workers=8
)
TRAININGS = (PICTURES, FEATURES)
"""ImageNet-like, and SA-1B-like with 2 MB of features. Assumed figures of a likely size: nothing of them was run."""

COLUMNS = (
    "GPUs",
    "nodes",
    "store must give",
    "requests/s",
    "lanes",
    "first bound",
    "laws",
    "simulated",
    "of the GPUs' own",
    "epoch 2",
    "in the long run",
)


def site_of(gpus: int) -> Cluster:
    """Nodes of eight, or part of one; the store is one for all."""
    return Cluster(
        nodes=max(1, gpus // PER_NODE),
        gpus_per_node=min(gpus, PER_NODE),
        network_bytes_s=12.5e9,
        store_bytes_s=40e9,
        store_requests_s=50e3,
        cache_bytes=8e12,
        cache_bytes_s=6e9,
    )


def reach(training: Training, numbers: Sequence[int] = GPUS) -> Iterator[tuple[str, ...]]:
    """A row for each number of GPUs; rates in samples per second of all ranks, in the first epoch unless told."""
    need = training.need()
    for gpus in numbers:
        site = site_of(gpus)
        asked, first = fleet_demand(need, site), forecast_epoch(need, site, "first", 0.0)
        later = [
            forecast_epoch(need, site, name, cache_hit_share(site, need.dataset_bytes, number)).samples_s
            for name, number in (("second", 2), ("later", None))
        ]
        assert asked.store_bytes_s is not None
        assert asked.store_requests_s is not None
        yield (
            f"{gpus:,}",
            f"{site.nodes:,}",
            format_byte_rate(asked.store_bytes_s),
            format_number(asked.store_requests_s),
            f"{plan_lanes(site.ranks, need.dataset_bytes).lanes:,}",
            cluster_bounds(need, site)[0].name.replace("_", " "),
            format_number(first.limits[0].samples_s),
            format_number(first.samples_s),
            f"{first.samples_s / asked.samples_s:.0%}",
            format_number(later[0]),
            format_number(later[1]),
        )
