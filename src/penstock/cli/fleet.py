"""The options of `penstock plan` for many ranks (`--nodes N --gpus-per-node G`), and how such a plan is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated

import typer

from penstock.cli import console
from penstock.cli.arguments import parse_byte_rate, parse_bytes
from penstock.errors import SettingError
from penstock.plan.data_changes import SSD_BYTES_S
from penstock.plan.fleet.cluster import Cluster
from penstock.plan.fleet.forecast import FleetPlan, StorePrice, plan_fleet
from penstock.plan.fleet.rank_need import RankNeed
from penstock.report.fleet import fleet_document, fleet_text

STEP_BINDS, OTHER_BINDS = 0, 1

Nodes = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Plan for this many nodes, from the recording or probes of one.")
]
GpusPerNode = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="With --nodes: GPUs of each node; one rank per GPU.")
]
NodeCores = Annotated[
    float | None,
    typer.Option(metavar="N", help="With --nodes: cores of each node.  [default: as on the measured machine]"),
]
Network = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="With --nodes: network of each node, like 100Gbit/s.  [default: not known]"),
]
StoreBandwidth = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="With --nodes: what the store delivers, like 25GB/s.  [default: not known]"),
]
StoreRequests = Annotated[
    float | None, typer.Option(metavar="PER_S", help="With --nodes: requests that it serves.  [default: not known]")
]
CacheBytes = Annotated[
    str | None, typer.Option(metavar="SIZE", help="With --nodes: cache of each node, like 2TB.  [default: none]")
]
CacheBandwidth = Annotated[
    str | None,
    typer.Option(metavar="RATE", help=f"With --cache-bytes: its read rate.  [default: {SSD_BYTES_S / 1e9:g}GB/s]"),
]
DatasetBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="With --nodes: size of the dataset, like 40TB.  [default: as recorded]"),
]
PriceGb = Annotated[
    float | None, typer.Option(metavar="AMOUNT", help="With --nodes: price of a GB read from the store.")
]
PriceRequests = Annotated[
    float | None, typer.Option(metavar="AMOUNT", help="With --nodes: price of a million requests.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options as given on the command line; None for those that were not."""

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
            raise SettingError(f"{options}: for how many ranks?", advice="Give both --nodes and --gpus-per-node")
        if self.cache_bandwidth is not None and self.cache_bytes is None:
            raise SettingError("--cache-bandwidth is that of a cache", advice="Give --cache-bytes too")
        for name in ("price_gb", "price_requests"):
            if (getattr(self, name) or 0.0) < 0:
                raise SettingError(f"--{name.replace('_', '-')} is below 0")

    @property
    def given(self) -> bool:
        """Whether a plan for many ranks was requested."""
        return self.nodes is not None

    def cluster(self) -> Cluster:
        """Return the machines that the ranks run on."""
        assert self.nodes is not None
        assert self.gpus_per_node is not None
        return Cluster(
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            cores=self.node_cores,
            network_bytes_s=_parsed(parse_byte_rate, self.network, "--network"),
            store_bytes_s=_parsed(parse_byte_rate, self.store_bandwidth, "--store-bandwidth"),
            store_requests_s=self.store_requests,
            cache_bytes=_parsed(parse_bytes, self.cache_bytes, "--cache-bytes") or 0.0,
            cache_bytes_s=_parsed(parse_byte_rate, self.cache_bandwidth, "--cache-bandwidth") or SSD_BYTES_S,
        )


def print_fleet_plan(need: RankNeed, options: FleetOptions, *, as_json: bool) -> int:
    """Make and print the plan; return the exit code."""
    if (size_bytes := _parsed(parse_bytes, options.dataset_bytes, "--dataset-bytes")) is not None:
        need = need.with_dataset(size_bytes)
    price = StorePrice(of_gb=options.price_gb, of_million_requests=options.price_requests)
    with console.busy("simulating all ranks …"):
        plan = plan_fleet(need, options.cluster(), price)
    if as_json:
        console.print_json(fleet_document(plan))
    else:
        console.out.print(fleet_text(plan))
    return exit_code(plan)


def _parsed(parse: Callable[[str, str], float], text: str | None, option: str) -> float | None:
    """Parse the value of an option; None if it was not given."""
    return None if text is None else parse(text, option)


def exit_code(plan: FleetPlan) -> int:
    """Return the exit code by what binds first in the first epoch."""
    return STEP_BINDS if plan.epochs[0].limits[0].name == "step" else OTHER_BINDS
