"""What ranks that go in step ask of each resource, and the bound that each sets: capacity over demand."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from penstock.errors import SettingError
from penstock.model.bounds import Bound
from penstock.model.ranks import PLACES
from penstock.model.simulation_input import Floats
from penstock.plan.data_changes import SSD_BYTES_S
from penstock.plan.fleet.rank_need import RankNeed, expected_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes before one store. A limit that is None is not known: what is demanded is said, and bounds nothing."""

    nodes: int
    gpus_per_node: int
    """One rank each."""
    cores: float | None = None
    """Of a node; None: as many as the node had that was measured."""
    network_bytes_s: float | None = None
    """Of a node, towards the store."""
    store_bytes_s: float | None = None
    store_requests_s: float | None = None
    cache_bytes: float = 0.0
    """Of a node, for what it has read; 0: none."""
    cache_bytes_s: float = SSD_BYTES_S
    """That a node reads from its cache."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise SettingError(f"{self.nodes} nodes with {self.gpus_per_node} GPUs each train nothing")
        limits = (self.cores, self.network_bytes_s, self.store_bytes_s, self.store_requests_s, self.cache_bytes_s)
        if not all(limit is None or 0 < limit < inf for limit in limits) or not 0 <= self.cache_bytes < inf:
            raise SettingError("a limit is a number above 0", advice="Leave out what is not known")

    @property
    def ranks(self) -> int:
        """Of all nodes together."""
        return self.nodes * self.gpus_per_node


def hit_share(site: Cluster, dataset_bytes: float | None, epoch: int | None) -> float:
    """Share of what a node reads that it finds in its cache in this epoch (from 1), or in the long run (None).

    Every epoch deals blocks to ranks anew, so a node reads another random part of the dataset each time: after e epochs
    it has met 1 - (1 - 1/N)^e of it. The cache keeps what it has when it is full; one that goes by least recent use
    keeps less that is of use.
    """
    if not site.cache_bytes or not dataset_bytes:
        return 0.0
    met = 1.0 if epoch is None else 1 - (1 - 1 / site.nodes) ** (epoch - 1)
    return min(met, site.cache_bytes / dataset_bytes)


MEANING = {
    "step": "the GPU's step, of the slowest rank",
    "loader": "batches in the making per rank",
    "cores": "the cores of a node",
    "network": "the network of a node",
    "cache": "reading from a node's cache",
    "store_bandwidth": "the store's bandwidth",
    "store_requests": "the requests that the store serves",
}
"""Of a bound's name, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDemand:
    """What keeps all GPUs busy, each at the speed it has alone; None where it was not counted."""

    samples_s: float
    node_cores: float
    node_bytes_s: float | None
    store_bytes_s: float | None
    store_requests_s: float | None
    in_flight: float
    """Batches of a rank in the making at a time, by Little's law."""


def fleet_demand(need: RankNeed, site: Cluster, hits: float = 0.0) -> FleetDemand:
    """With this share of the bytes from the nodes' caches."""
    steps_s = 1 / float(need.step_s.mean())
    missed = 1 - hits
    of_bytes = None if need.batch_bytes is None else need.batch_bytes * missed * steps_s
    requests = None if need.batch_requests is None else need.batch_requests * missed * steps_s
    return FleetDemand(
        samples_s=need.samples_per_batch * steps_s * site.ranks,
        node_cores=need.computing_s * steps_s * site.gpus_per_node,
        node_bytes_s=None if of_bytes is None else of_bytes * site.gpus_per_node,
        store_bytes_s=None if of_bytes is None else of_bytes * site.ranks,
        store_requests_s=None if requests is None else requests * site.ranks,
        in_flight=float(need.cpu_s.mean() + need.waited_s.mean()) * steps_s,
    )


def bounds(need: RankNeed, site: Cluster, hits: float = 0.0) -> tuple[Bound, ...]:
    """In steps per second, the one that bites first, then the next."""
    read, requests = (0.0 if asked is None else asked for asked in (need.batch_bytes, need.batch_requests))
    missed = 1 - hits
    service_s = float(places(need, site, hits).sum(axis=0).mean())
    pairs = (
        ("step", 1.0, expected_most(need.step_s, site.ranks)),
        ("loader", float(need.workers or 1), service_s + (0.0 if need.workers else float(need.step_s.mean()))),
        ("cores", cores_of(need, site), need.computing_s * site.gpus_per_node),
        ("network", site.network_bytes_s, read * missed * site.gpus_per_node),
        ("cache", site.cache_bytes_s, read * hits * site.gpus_per_node),
        ("store_bandwidth", site.store_bytes_s, read * missed * site.ranks),
        ("store_requests", site.store_requests_s, requests * missed * site.ranks),
    )
    found = [Bound(name, capacity / asked) for name, capacity, asked in pairs if capacity is not None and asked > 0]
    return tuple(sorted(found, key=lambda bound: bound.rate))


def places(need: RankNeed, site: Cluster, hits: float = 0.0) -> Floats:
    """Seconds of making a batch with nobody else there, a row per place of the simulator, a column per batch.

    What was waited when the node was measured held the way of the bytes too: what that takes here is taken off it.
    """
    missed = 1 - hits
    read, requests = (0.0 if asked is None else asked for asked in (need.batch_bytes, need.batch_requests))
    store_s = max(_over(read, site.store_bytes_s), _over(requests, site.store_requests_s)) * missed
    network_s = _over(read, site.network_bytes_s) * missed
    cache_s = read * hits / site.cache_bytes_s
    rows = {
        "alone_s": np.maximum(need.waited_s * missed - store_s - network_s, 0.0),
        "store_s": np.full(len(need.cpu_s), store_s),
        "network_s": np.full(len(need.cpu_s), network_s),
        "cache_s": np.full(len(need.cpu_s), cache_s),
        "cpu_s": need.cpu_s,
    }
    return np.stack([rows[name] for name in PLACES])


def _over(amount: float, rate: float | None) -> float:
    return 0.0 if rate is None else amount / rate


def cores_of(need: RankNeed, site: Cluster) -> float:
    """Of a node: as told, else as measured."""
    return need.cores if site.cores is None else site.cores
