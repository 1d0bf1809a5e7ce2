"""The table of the model's figures for one training on 1 to 1024 GPUs: bounds, simulation, and demand on the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.core.format import format_byte_rate, format_number
from penstock.options import BLOCK_BYTES
from penstock.plan.fleet.cluster import Cluster, cache_hit_share, cluster_bounds, fleet_demand
from penstock.plan.fleet.forecast import forecast_epoch, plan_lanes
from penstock.plan.fleet.rank_need import RankNeed

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
GPUS_PER_NODE = 8
BATCHES = 200
"""Batches and steps whose durations the simulation draws from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The assumed figures of a training."""

    name: str
    batch: int
    """Samples of a step, per GPU."""
    step_s: float
    sample_bytes: float
    cpu_s: float
    """Seconds of a core per sample."""
    samples: float
    """Samples of the dataset."""
    workers: int
    variation: float = 0.05
    """Standard deviation of steps and of batches, relative to their mean."""

    def need(self) -> RankNeed:
        """Return the need of a rank."""
        rng = np.random.default_rng(0)
        variations = np.maximum(rng.normal(1.0, self.variation, (2, BATCHES)), 0.1)
        batch_bytes = self.batch * self.sample_bytes
        return RankNeed(
            source="probes",
            samples_per_batch=float(self.batch),
            cpu_s=self.batch * self.cpu_s * variations[0],
            waited_s=np.zeros(BATCHES),
            step_s=self.step_s * variations[1],
            step_cpu_s=np.zeros(BATCHES),
            batch_bytes=batch_bytes,
            batch_requests=batch_bytes / BLOCK_BYTES,
            workers=self.workers,
            prefetch=2,
            cores=128.0,
            samples=self.samples,
        )


IMAGES = Training(name="images", batch=256, step_s=0.25, sample_bytes=110e3, cpu_s=0.0012, samples=1.28e6, workers=4)
IMAGES_WITH_FEATURES = Training(
    name="images with features", batch=24, step_s=0.06, sample_bytes=2.9e6, cpu_s=0.0096, samples=11e6, workers=8
)
TRAININGS = (IMAGES, IMAGES_WITH_FEATURES)
"""A training like ImageNet, and one like SA-1B with 2 MB of features. Their figures are assumed; neither was run."""

COLUMNS = (
    "GPUs",
    "nodes",
    "demand on the store",
    "requests/s",
    "lanes",
    "lowest bound",
    "by the bounds",
    "simulated",
    "of the GPUs' speed",
    "epoch 2",
    "in the long run",
)


def assumed_cluster(gpus: int) -> Cluster:
    """Return a cluster of nodes with eight GPUs, or one node with fewer, in front of one store."""
    return Cluster(
        nodes=max(1, gpus // GPUS_PER_NODE),
        gpus_per_node=min(gpus, GPUS_PER_NODE),
        network_bytes_s=12.5e9,
        store_bytes_s=40e9,
        store_requests_s=50e3,
        cache_bytes=8e12,
        cache_bytes_s=6e9,
    )


def scaling_rows(training: Training, gpu_counts: Sequence[int] = GPUS) -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of GPUs; rates are samples per second of all ranks, in the first epoch by default."""
    need = training.need()
    for gpus in gpu_counts:
        cluster = assumed_cluster(gpus)
        demand, first = fleet_demand(need, cluster), forecast_epoch(need, cluster, "first", 0.0)
        second_samples_s, later_samples_s = (
            forecast_epoch(need, cluster, name, cache_hit_share(cluster, need.dataset_bytes, number)).samples_s
            for name, number in (("second", 2), ("later", None))
        )
        assert demand.store_bytes_s is not None
        assert demand.store_requests_s is not None
        yield (
            f"{gpus:,}",
            f"{cluster.nodes:,}",
            format_byte_rate(demand.store_bytes_s),
            format_number(demand.store_requests_s),
            f"{plan_lanes(cluster.ranks, need.dataset_bytes).lanes:,}",
            cluster_bounds(need, cluster)[0].name.replace("_", " "),
            format_number(first.limits[0].samples_s),
            format_number(first.samples_s),
            f"{first.samples_s / demand.samples_s:.0%}",
            format_number(second_samples_s),
            format_number(later_samples_s),
        )
