"""A cluster of equal nodes, what the ranks of a training demand of it, and the bound that each resource sets.

The ranks step together, so the slowest rank sets the rate of all; each bound is capacity over demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from penstock.core.types import Floats
from penstock.errors import SettingError
from penstock.model.bounds import Bound
from penstock.model.rank_simulator import RANK_STAGES
from penstock.plan.data_changes import SSD_BYTES_S
from penstock.plan.fleet.rank_need import RankNeed, expected_maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes in front of one store.

    A limit that is None is not known: the demand is reported, but no bound is set.
    """

    nodes: int
    gpus_per_node: int
    """GPUs of a node, with one rank each."""
    cores: float | None = None
    """Cores of a node; None: as many as the node had that was measured."""
    network_bytes_s: float | None = None
    """Bandwidth of a node to the store."""
    store_bytes_s: float | None = None
    store_requests_s: float | None = None
    cache_bytes: float = 0.0
    """Size of a node's cache for data that it has read; 0: none."""
    cache_bytes_s: float = SSD_BYTES_S
    """Bandwidth of a node's cache."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise SettingError(f"{self.nodes} nodes with {self.gpus_per_node} GPUs each train nothing")
        limits = (self.cores, self.network_bytes_s, self.store_bytes_s, self.store_requests_s, self.cache_bytes_s)
        if not all(limit is None or 0 < limit < inf for limit in limits) or not 0 <= self.cache_bytes < inf:
            raise SettingError("a limit is a number above 0", advice="Leave out what is not known")

    @property
    def ranks(self) -> int:
        """Ranks of all nodes together."""
        return self.nodes * self.gpus_per_node


def cache_hit_share(site: Cluster, dataset_bytes: float | None, epoch: int | None) -> float:
    """Return the share of a node's reads that its cache holds in an epoch (from 1), or in the long run (None).

    Every epoch assigns blocks to ranks anew, so a node reads another random part of the dataset each time: after e
    epochs it has read 1 - (1 - 1/N)^e of it. The cache is assumed to keep its content when it is full; one that evicts
    the least recently used data holds less that is of use.
    """
    if not site.cache_bytes or not dataset_bytes:
        return 0.0
    read_before = 1.0 if epoch is None else 1 - (1 - 1 / site.nodes) ** (epoch - 1)
    return min(read_before, site.cache_bytes / dataset_bytes)


BOUND_NAMES = {
    "step": "the GPU's step, of the slowest rank",
    "loader": "batches in the making per rank",
    "cores": "the cores of a node",
    "network": "the network of a node",
    "cache": "reading from a node's cache",
    "store_bandwidth": "the store's bandwidth",
    "store_requests": "the requests that the store serves",
}
"""A description of each bound, by the name of the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDemand:
    """The resources that keep all GPUs busy, each at the speed it has alone; None where they were not counted."""

    samples_s: float
    node_cores: float
    node_bytes_s: float | None
    store_bytes_s: float | None
    store_requests_s: float | None
    in_flight: float
    """Batches of a rank that are being made at a time, by Little's law."""


def fleet_demand(need: RankNeed, site: Cluster, hits: float = 0.0) -> FleetDemand:
    """Return the demand of all ranks, with this share of the bytes from the nodes' caches."""
    steps_s = 1 / float(need.step_s.mean())
    missed = 1 - hits
    bytes_s = None if need.batch_bytes is None else need.batch_bytes * missed * steps_s
    requests_s = None if need.batch_requests is None else need.batch_requests * missed * steps_s
    return FleetDemand(
        samples_s=need.samples_per_batch * steps_s * site.ranks,
        node_cores=need.computing_s * steps_s * site.gpus_per_node,
        node_bytes_s=None if bytes_s is None else bytes_s * site.gpus_per_node,
        store_bytes_s=None if bytes_s is None else bytes_s * site.ranks,
        store_requests_s=None if requests_s is None else requests_s * site.ranks,
        in_flight=float(need.cpu_s.mean() + need.waited_s.mean()) * steps_s,
    )


def cluster_bounds(need: RankNeed, site: Cluster, hits: float = 0.0) -> tuple[Bound, ...]:
    """Return the bounds in steps per second, the lowest first."""
    read, requests = (0.0 if amount is None else amount for amount in (need.batch_bytes, need.batch_requests))
    missed = 1 - hits
    batch_s = float(batch_stages(need, site, hits).sum(axis=0).mean())
    demands = (
        ("step", 1.0, expected_maximum(need.step_s, site.ranks)),
        ("loader", float(need.workers or 1), batch_s + (0.0 if need.workers else float(need.step_s.mean()))),
        ("cores", node_cores(need, site), need.computing_s * site.gpus_per_node),
        ("network", site.network_bytes_s, read * missed * site.gpus_per_node),
        ("cache", site.cache_bytes_s, read * hits * site.gpus_per_node),
        ("store_bandwidth", site.store_bytes_s, read * missed * site.ranks),
        ("store_requests", site.store_requests_s, requests * missed * site.ranks),
    )
    found = [
        Bound(name, capacity / demand) for name, capacity, demand in demands if capacity is not None and demand > 0
    ]
    return tuple(sorted(found, key=lambda bound: bound.rate))


def batch_stages(need: RankNeed, site: Cluster, hits: float = 0.0) -> Floats:
    """Return the seconds of each stage of making a batch without other ranks: rows are stages, columns are batches.

    The waiting measured on one node includes the transfer of the bytes, so the time that the transfer takes in this
    cluster is subtracted from it.
    """
    missed = 1 - hits
    read, requests = (0.0 if amount is None else amount for amount in (need.batch_bytes, need.batch_requests))
    store_s = max(_seconds(read, site.store_bytes_s), _seconds(requests, site.store_requests_s)) * missed
    network_s = _seconds(read, site.network_bytes_s) * missed
    cache_s = read * hits / site.cache_bytes_s
    rows = {
        "latency_s": np.maximum(need.waited_s * missed - store_s - network_s, 0.0),
        "store_s": np.full(len(need.cpu_s), store_s),
        "network_s": np.full(len(need.cpu_s), network_s),
        "cache_s": np.full(len(need.cpu_s), cache_s),
        "cpu_s": need.cpu_s,
    }
    return np.stack([rows[name] for name in RANK_STAGES])


def _seconds(amount: float, rate: float | None) -> float:
    return 0.0 if rate is None else amount / rate


def node_cores(need: RankNeed, site: Cluster) -> float:
    """Return the cores of a node: the given number, else those of the node that was measured."""
    return need.cores if site.cores is None else site.cores
