"""`penstock plan --nodes N --gpus-per-node G`: its options, and from them to a plan for many ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import bytes_in
from penstock.errors import SettingError
from penstock.plan.data_changes import SSD_BYTES_S
from penstock.plan.fleet.cluster import Cluster
from penstock.plan.fleet.forecast import FleetPlan, StorePrice, plan_fleet
from penstock.plan.fleet.rank_need import RankNeed
from penstock.report.fleet import fleet_document, fleet_text

STEP_BITES, OTHER_BITES = 0, 1

Nodes = Annotated[int | None, typer.Option(min=1, help="Plan for so many nodes, from the recording or probes of one.")]
GpusPerNode = Annotated[int | None, typer.Option(min=1, help="With --nodes: one rank for each.")]
NodeCores = Annotated[float | None, typer.Option(help="With --nodes, of each.  [default: as many as were measured on]")]
Network = Annotated[
    str | None, typer.Option(metavar="RATE", help="With --nodes, of each: 100Gbit/s.  [default: not known]")
]
StoreBandwidth = Annotated[
    str | None, typer.Option(metavar="RATE", help="With --nodes: 25GB/s.  [default: not known, demanded only]")
]
StoreRequests = Annotated[
    float | None, typer.Option(metavar="PER_S", help="With --nodes, that it serves.  [default: not known]")
]
CacheBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="With --nodes, of each: 2TB.  [default: none]")]
CacheBandwidth = Annotated[
    str | None,
    typer.Option(metavar="RATE", help=f"With --cache-bytes, that it reads at.  [default: {SSD_BYTES_S / 1e9:g}GB/s]"),
]
DatasetBytes = Annotated[
    str | None, typer.Option(metavar="SIZE", help="With --nodes: 40TB.  [default: that of the recording]")
]
PriceGb = Annotated[float | None, typer.Option(metavar="AMOUNT", help="With --nodes: of a GB read from the store.")]
PriceRequests = Annotated[float | None, typer.Option(metavar="AMOUNT", help="With --nodes: of a million requests.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """As given on the command line; None where it was not."""

    nodes: int | None
    gpus_per_node: int | None
    node_cores: float | None
    network: str | None
    store_bandwidth: str | None
    store_requests: float | None
    cache_bytes: str | None
    cache_bandwidth: str | None
    dataset_bytes: str | None
    price_gb: float | None
    price_requests: float | None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if given and (self.nodes is None or self.gpus_per_node is None):
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise SettingError(f"{options}: for how many?", advice="Give both --nodes and --gpus-per-node")
        if self.cache_bandwidth is not None and self.cache_bytes is None:
            raise SettingError("--cache-bandwidth is that of a cache", advice="Give --cache-bytes too")
        for name in ("price_gb", "price_requests"):
            if (getattr(self, name) or 0.0) < 0:
                raise SettingError(f"--{name.replace('_', '-')} is below 0")

    @property
    def wanted(self) -> bool:
        """Whether many ranks are asked about."""
        return self.nodes is not None

    def site(self) -> Cluster:
        """Where they run."""
        assert self.nodes is not None
        assert self.gpus_per_node is not None
        return Cluster(
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            cores=self.node_cores,
            network_bytes_s=bytes_in(self.network, "--network"),
            store_bytes_s=bytes_in(self.store_bandwidth, "--store-bandwidth"),
            store_requests_s=self.store_requests,
            cache_bytes=bytes_in(self.cache_bytes, "--cache-bytes") or 0.0,
            cache_bytes_s=bytes_in(self.cache_bandwidth, "--cache-bandwidth") or SSD_BYTES_S,
        )


def show_fleet(need: RankNeed, asked: FleetOptions, *, as_json: bool) -> int:
    """Prints the plan; the exit code."""
    if (size_bytes := bytes_in(asked.dataset_bytes, "--dataset-bytes")) is not None:
        need = need.with_dataset(size_bytes)
    price = StorePrice(of_gb=asked.price_gb, of_million_requests=asked.price_requests)
    with console.notices.status("simulating all ranks …"):
        found = plan_fleet(need, asked.site(), price)
    if as_json:
        console.print_json(fleet_document(found))
    else:
        console.out.print(fleet_text(found))
    return exit_code(found)


def exit_code(found: FleetPlan) -> int:
    """By what bites first in the first epoch."""
    return STEP_BITES if found.epochs[0].limits[0].name == "step" else OTHER_BITES
