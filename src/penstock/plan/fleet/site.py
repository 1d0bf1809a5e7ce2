"""Where many ranks run: nodes, what each has, and what the store behind them all can give."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from penstock.errors import SettingError
from penstock.plan.data_changes import SSD_BYTES_S


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
