"""A plan for many ranks as a terminal shows it: what is demanded, what is reached, and what it costs."""

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


def fleet_document(plan: FleetPlan) -> dict[str, Any]:
    """As plain values."""
    document: dict[str, Any] = msgspec.to_builtins(plan)
    return document


def fleet_text(plan: FleetPlan) -> RenderableType:
    """For `Console.print`: sentences first, then the tables they are made of."""
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
    """Demanded against what there is."""
    site, asked = plan.site, plan.demanded
    return [
        ("the store's bandwidth", _rate(asked.store_bytes_s), _rate(site.store_bytes_s)),
        ("requests to the store", _count(asked.store_requests_s, "/s"), _count(site.store_requests_s, "/s")),
        ("a node's network", _rate(asked.node_bytes_s), _rate(site.network_bytes_s)),
        ("a node's cores", format_number(asked.node_cores), format_number(plan.cores)),
        ("a node's cache, for all of it", _size(plan.dataset_bytes), format_bytes(site.cache_bytes)),
    ]


def epoch_rows(plan: FleetPlan) -> list[tuple[str, ...]]:
    """One for each epoch that differs."""
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
    """Of the first epoch."""
    order = ("bites first", "bites next")
    limits = plan.epochs[0].limits
    return [
        (BOUND_NAMES[limit.name], format_number(limit.samples_s), order[at] if at < len(order) else "")
        for at, limit in enumerate(limits)
    ]


def packing_rows(plan: FleetPlan) -> list[tuple[str, ...]]:
    """As it is, and what could be."""
    return [_packed(each) for each in plan.packing]


def _packed(each: PackedForecast) -> tuple[str, ...]:
    asked = each.demanded
    return (
        each.name,
        _rate(asked.store_bytes_s),
        _count(asked.store_requests_s),
        format_number(asked.node_cores),
        BOUND_NAMES[each.first.name],
        format_number(each.first.samples_s),
    )


# -- sentences -------------------------------------------------------------------------------------------------------


def fleet_sentences(plan: FleetPlan) -> Iterator[str]:
    """What a person wants to know first."""
    site, first = plan.site, plan.epochs[0]
    yield (
        f"{site.nodes:,} nodes with {site.gpus_per_node} GPUs each make {site.ranks:,} ranks, and a step is "
        f"{plan.samples_per_batch * site.ranks:,.0f} samples."
    )
    yield _first_bound(plan, first)
    if plan.slowest_s > 1.01 * plan.step_s:
        yield (
            f"A step takes {format_duration(plan.step_s)} on average, and the slowest of {site.ranks:,} ranks "
            f"{format_duration(plan.slowest_s)}: all others wait for it."
        )
    if len(plan.epochs) > 1:
        last = plan.epochs[-1]
        yield (
            f"With {format_bytes(site.cache_bytes)} of cache on each node it is {format_number(last.samples_s)} "
            "samples/s in "
            f"the long run: {last.hits:.0%} of what a node reads is there by then. Every epoch deals the data anew, so "
            "a node meets another part of it each time."
        )
    yield from _of_lanes(plan)
    yield _of_cost(plan, first)


def _first_bound(plan: FleetPlan, first: FleetEpoch) -> str:
    share = first.samples_s / plan.demanded.samples_s
    rate = f"{format_number(first.samples_s)} samples/s in the first epoch, {share:.0%} of what the GPUs could take"
    return f"{rate}. The first bound: {BOUND_NAMES[first.limits[0].name]}."


def _of_lanes(plan: FleetPlan) -> Iterator[str]:
    lanes = plan.lanes
    yield (
        f"For penstock.Loader: lanes={lanes.lanes}, block_bytes={lanes.block_bytes}; at least {lanes.shards:,} shards, "
        f"or {lanes.packed_shards:,} where they are compressed; {format_bytes(lanes.rank_bytes)} of blocks in each "
        "rank's memory."
    )
    if not lanes.enough:
        yield (
            f"The dataset is too small for so many ranks: {lanes.lanes:,} lanes want {MIN_BLOCKS_PER_LANE} blocks each, and "
            f"it has {lanes.blocks:,}."
        )


def _of_cost(plan: FleetPlan, first: FleetEpoch) -> str:
    if first.store_bytes is None:
        return "What an epoch costs is not known: the size of the dataset, or of what is read of it, is not."
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
