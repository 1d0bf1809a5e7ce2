"""`penstock plan --nodes`: a plan for many ranks: what they demand, what they get, and what an epoch costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from penstock.core.format import NOT_KNOWN, format_byte_rate, format_bytes, format_duration, format_number
from penstock.errors import printable
from penstock.plan.fleet.cluster import BOUND_NAMES
from penstock.plan.fleet.forecast import MIN_BLOCKS_PER_LANE, FleetEpoch, FleetPlan, PackedForecast
from penstock.report.text import table

EPOCH_COLUMNS = ("epoch", "from caches", "samples/s", "of the GPUs' own", "store gives", "requests/s", "takes", "reads")
PACKING_COLUMNS = ("data", "store must give", "requests/s", "cores a node", "first bound", "samples/s")
SLOWEST_MATTERS = 1.01
"""If the slowest rank's step is longer than the mean by more than this factor, the plan mentions it."""


def fleet_document(plan: FleetPlan) -> dict[str, Any]:
    """Return the plan as plain values for JSON."""
    document: dict[str, Any] = msgspec.to_builtins(plan)
    return document


def fleet_text(plan: FleetPlan) -> RenderableType:
    """Return the plan for `Console.print`: sentences first, then the tables with their numbers."""
    demanded = table("What keeps all GPUs busy", ("of", "demanded", "there is"), demand_rows(plan), right=("demanded",))
    epochs = table("What they get", EPOCH_COLUMNS, epoch_rows(plan), right=EPOCH_COLUMNS[1:])
    bounds = table("What bounds the first epoch", ("bound", "samples/s", ""), bound_rows(plan), right=("samples/s",))
    packing = table("What packing would change", PACKING_COLUMNS, packing_rows(plan), right=("samples/s",))
    return Group(
        *(Text(printable(sentence)) for sentence in fleet_sentences(plan)),
        Text(),
        demanded,
        epochs,
        bounds,
        packing,
        *(Text(printable(f"· {note}")) for note in plan.notes),
    )


# -- rows ------------------------------------------------------------------------------------------------------------


def demand_rows(plan: FleetPlan) -> list[tuple[str, str, str]]:
    """Return what all GPUs together demand, and the capacity that was given."""
    site, demand = plan.site, plan.demanded
    return [
        ("the store's bandwidth", _rate(demand.store_bytes_s), _rate(site.store_bytes_s)),
        ("requests to the store", _count(demand.store_requests_s, "/s"), _count(site.store_requests_s, "/s")),
        ("a node's network", _rate(demand.node_bytes_s), _rate(site.network_bytes_s)),
        ("a node's cores", format_number(demand.node_cores), format_number(plan.cores)),
        ("a node's cache, for all of it", _size(plan.dataset_bytes), format_bytes(site.cache_bytes)),
    ]


def epoch_rows(plan: FleetPlan) -> list[tuple[str, ...]]:
    """Return one row for each epoch that differs."""
    return [
        (
            epoch.name,
            f"{epoch.hits:.0%}",
            format_number(epoch.samples_s),
            f"{epoch.samples_s / plan.demanded.samples_s:.0%}",
            _rate(epoch.store_bytes_s),
            _count(epoch.store_requests_s),
            NOT_KNOWN if epoch.seconds is None else format_duration(epoch.seconds),
            _cost(epoch),
        )
        for epoch in plan.epochs
    ]


def bound_rows(plan: FleetPlan) -> list[tuple[str, str, str]]:
    """Return the bounds of the first epoch."""
    order = ("binds first", "binds next")
    limits = plan.epochs[0].limits
    return [
        (BOUND_NAMES[limit.name], format_number(limit.samples_s), order[number] if number < len(order) else "")
        for number, limit in enumerate(limits)
    ]


def packing_rows(plan: FleetPlan) -> list[tuple[str, ...]]:
    """Return a row for the data as it is, and one for each packing."""
    return [_packing_row(each) for each in plan.packing]


def _packing_row(forecast: PackedForecast) -> tuple[str, ...]:
    demand = forecast.demanded
    return (
        forecast.name,
        _rate(demand.store_bytes_s),
        _count(demand.store_requests_s),
        format_number(demand.node_cores),
        BOUND_NAMES[forecast.first.name],
        format_number(forecast.first.samples_s),
    )


# -- sentences -------------------------------------------------------------------------------------------------------


def fleet_sentences(plan: FleetPlan) -> Iterator[str]:
    """Yield the sentences at the top: size, first bound, slowest rank, cache, lanes and cost."""
    site, first = plan.site, plan.epochs[0]
    yield (
        f"{site.nodes:,} nodes with {site.gpus_per_node} GPUs each make {site.ranks:,} ranks, and a step is "
        f"{plan.samples_per_batch * site.ranks:,.0f} samples."
    )
    yield _first_bound(plan, first)
    if plan.slowest_s > SLOWEST_MATTERS * plan.step_s:
        yield (
            f"A step takes {format_duration(plan.step_s)} on average, and the slowest of {site.ranks:,} ranks "
            f"{format_duration(plan.slowest_s)}: all others wait for it."
        )
    if len(plan.epochs) > 1:
        last = plan.epochs[-1]
        yield (
            f"With {format_bytes(site.cache_bytes)} of cache on each node it is {format_number(last.samples_s)} "
            f"samples/s in the long run: {last.hits:.0%} of what a node reads is cached by then. Every epoch divides "
            "the data among the nodes in another order, so a node reads another part of it each time."
        )
    yield from _lane_sentences(plan)
    yield _cost_sentence(plan, first)


def _first_bound(plan: FleetPlan, first: FleetEpoch) -> str:
    share = first.samples_s / plan.demanded.samples_s
    rate = f"{format_number(first.samples_s)} samples/s in the first epoch, {share:.0%} of what the GPUs could take"
    return f"{rate}. The first bound: {BOUND_NAMES[first.limits[0].name]}."


def _lane_sentences(plan: FleetPlan) -> Iterator[str]:
    lanes = plan.lanes
    yield (
        f"For penstock.Loader: lanes={lanes.lanes}, block_bytes={lanes.block_bytes}; at least {lanes.shards:,} shards, "
        f"or {lanes.packed_shards:,} where they are compressed; {format_bytes(lanes.rank_bytes)} of blocks in each "
        "rank's memory."
    )
    if not lanes.enough:
        yield (
            f"The dataset is too small for so many ranks: {lanes.lanes:,} lanes need {MIN_BLOCKS_PER_LANE} blocks "
            f"each, and it has {lanes.blocks:,}."
        )


def _cost_sentence(plan: FleetPlan, first: FleetEpoch) -> str:
    if first.store_bytes is None:
        return "The cost of an epoch is not known, because the size of the dataset or of the bytes read from it is not."
    later = "" if len(plan.epochs) < 2 else f", and {format_bytes(plan.epochs[-1].store_bytes or 0.0)} in the long run"
    requests = "" if first.store_requests is None else f" in {format_number(first.store_requests)} requests"
    price = "" if first.price is None else f", for {first.price:,.2f}"
    return f"An epoch reads {format_bytes(first.store_bytes)} from the store{requests}{price}{later}."


# -- cells -----------------------------------------------------------------------------------------------------------


def _cost(epoch: FleetEpoch) -> str:
    price = "" if epoch.price is None else f", {epoch.price:,.2f}"
    return f"{_size(epoch.store_bytes)}{price}"


def _size(count: float | None) -> str:
    return NOT_KNOWN if count is None else format_bytes(count)


def _rate(bytes_s: float | None) -> str:
    return NOT_KNOWN if bytes_s is None else format_byte_rate(bytes_s)


def _count(number: float | None, unit: str = "") -> str:
    return NOT_KNOWN if number is None else f"{format_number(number)}{unit}"
