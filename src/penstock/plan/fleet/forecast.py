"""A plan for many ranks: their demand, the rate they would reach in the first epoch and later, and what that costs.

The plan also cuts the order of an epoch into lanes and blocks, so that the ranks of penstock.Loader can share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from penstock.core.format import format_bytes
from penstock.core.plan import ThroughputLimit
from penstock.model.rank_simulator import RANK_STAGES, RankGroup, SynchronousRun, simulate_ranks
from penstock.model.workload import WARM_UP_ROUNDS
from penstock.options import BLOCK_BYTES, default_lanes
from penstock.plan.fleet.cluster import (
    Cluster,
    FleetDemand,
    batch_stages,
    cache_hit_share,
    cluster_bounds,
    fleet_demand,
    node_cores,
)
from penstock.plan.fleet.rank_need import RankNeed, expected_maximum, in_blocks, with_half_side

# -- lanes and blocks ------------------------------------------------------------------------------------------------

MIN_BLOCKS_PER_LANE = 4
"""Blocks of a lane per epoch: lanes end up to one block apart, which is a large part of a lane with fewer blocks."""
MIN_BLOCK_BYTES = 64 << 10
"""Reads smaller than this take as long as their latency, whatever their size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """The lanes and blocks for penstock.Loader; the lanes are those that it chooses itself for so many ranks."""

    lanes: int
    block_bytes: int
    """The default block size, or less where the dataset has too few blocks of it."""
    blocks: int | None
    """Blocks of the dataset; None where its size is not known."""
    enough: bool
    """Whether every lane has enough blocks."""
    least_bytes: int
    """Size of the smallest dataset that has enough blocks of the default size."""
    shards: int
    """Shards needed at least, so that no two ranks read the same file at the same time."""
    packed_shards: int
    """Shards needed at least if they are compressed: a compressed shard is one block."""
    rank_bytes: int
    """Memory of a rank for its blocks, counted twice: one block is read while the other is in use."""


def plan_lanes(ranks: int, dataset_bytes: float | None) -> LanePlan:
    """Return the smallest number of lanes that these ranks can share, and the blocks of each."""
    lanes = default_lanes(ranks)
    block_bytes = _block_bytes(lanes, dataset_bytes)
    blocks = None if dataset_bytes is None else int(dataset_bytes // block_bytes)
    return LanePlan(
        lanes=lanes,
        block_bytes=block_bytes,
        blocks=blocks,
        enough=blocks is None or blocks >= MIN_BLOCKS_PER_LANE * lanes,
        least_bytes=MIN_BLOCKS_PER_LANE * lanes * BLOCK_BYTES,
        shards=ranks,
        packed_shards=MIN_BLOCKS_PER_LANE * lanes,
        rank_bytes=2 * lanes // ranks * block_bytes,
    )


def _block_bytes(lanes: int, dataset_bytes: float | None) -> int:
    """Return the block size, halved until there are enough blocks, but not below MIN_BLOCK_BYTES."""
    size = BLOCK_BYTES
    while dataset_bytes is not None and dataset_bytes < MIN_BLOCKS_PER_LANE * lanes * size and size > MIN_BLOCK_BYTES:
        size //= 2
    return size


# -- the plan --------------------------------------------------------------------------------------------------------

MIN_STEPS = 24
"""Steps that are simulated at least, in whole rounds of the workers."""
MIN_STEP_DRAWS = 2000
"""Step times that are drawn at least: few ranks simulate more steps, so that the mean is certain."""
MAX_EVENTS = 400_000
"""Simulator events, which take some seconds; if ranks × steps would need more, only the laws are used."""
EPOCHS = (("first", 1), ("second", 2), ("later", None))
"""Epochs with different cache contents: a node has read more of the dataset with each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePrice:
    """The prices of the store; None where one is not given."""

    of_gb: float | None = None
    of_million_requests: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEpoch:
    """The forecast of one epoch of all ranks together; amounts are None where they were not counted."""

    name: str
    hits: float
    """Share of the bytes that come from the nodes' caches."""
    limits: tuple[ThroughputLimit, ...]
    """Bounds in samples per second of all ranks, the lowest first."""
    samples_s: float
    by: Literal["simulation", "laws"]
    data_share: float | None
    """Share of the time in which the slowest rank waited for its batch; None where it was not simulated."""
    others_share: float | None
    """Share of the ranks' time spent waiting for slower ranks."""
    store_bytes_s: float | None
    """Rate at which all ranks read from the store."""
    store_requests_s: float | None
    seconds: float | None
    store_bytes: float | None
    """Bytes read from the store in the whole epoch."""
    store_requests: float | None
    price: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForecast:
    """The demand and the lowest bound for another form of the data, in the first epoch, by the laws."""

    name: str
    demanded: FleetDemand
    first: ThroughputLimit
    """The lowest bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The forecast for one training on many ranks."""

    source: Literal["recording", "probes"]
    site: Cluster
    cores: float
    """Cores of a node."""
    samples_per_batch: float
    step_s: float
    """Mean step of a rank alone."""
    slowest_s: float
    """Mean step of the slowest of all ranks."""
    dataset_bytes: float | None
    demanded: FleetDemand
    epochs: tuple[FleetEpoch, ...]
    lanes: LanePlan
    packing: tuple[PackedForecast, ...]
    """The data as it is first, then other forms."""
    notes: tuple[str, ...]


def plan_fleet(need: RankNeed, site: Cluster, price: StorePrice | None = None) -> FleetPlan:
    """Return the plan for ranks that step together, one per GPU, with batches of the measured size."""
    return FleetPlan(
        source=need.source,
        site=site,
        cores=node_cores(need, site),
        samples_per_batch=need.samples_per_batch,
        step_s=float(need.step_s.mean()),
        slowest_s=expected_maximum(need.step_s, site.ranks),
        dataset_bytes=need.dataset_bytes,
        demanded=fleet_demand(need, site),
        epochs=tuple(_epochs(need, site, price or StorePrice())),
        lanes=plan_lanes(site.ranks, need.dataset_bytes),
        packing=tuple(_packing(need, site)),
        notes=(*need.notes, *_notes(need, site)),
    )


def forecast_epoch(
    need: RankNeed, site: Cluster, name: str, hits: float, price: StorePrice | None = None
) -> FleetEpoch:
    """Return the forecast of an epoch with this share of the bytes from the nodes' caches."""
    found = cluster_bounds(need, site, hits)
    run = simulate_fleet(need, site, hits)
    per_step = need.samples_per_batch * site.ranks
    steps_s = found[0].rate if run is None else min(found[0].rate, run.steps_per_s)
    missed = 1 - hits
    amounts = (need.batch_bytes, need.batch_requests)
    from_store = [None if amount is None else amount * missed * site.ranks for amount in amounts]
    steps = None if need.samples is None else need.samples / per_step
    total = [None if amount is None or steps is None else amount * steps for amount in from_store]
    return FleetEpoch(
        name=name,
        hits=hits,
        limits=tuple(ThroughputLimit(name=bound.name, samples_s=bound.rate * per_step) for bound in found),
        samples_s=steps_s * per_step,
        by="laws" if run is None else "simulation",
        data_share=None if run is None else run.data_share,
        others_share=None if run is None else run.others_share,
        store_bytes_s=None if from_store[0] is None else from_store[0] * steps_s,
        store_requests_s=None if from_store[1] is None else from_store[1] * steps_s,
        seconds=None if steps is None else steps / steps_s,
        store_bytes=total[0],
        store_requests=total[1],
        price=_price(total[0], total[1], price or StorePrice()),
    )


def simulate_fleet(need: RankNeed, site: Cluster, hits: float = 0.0) -> SynchronousRun | None:
    """Simulate all ranks together; return None where that would take too long."""
    group = RankGroup(
        nodes=site.nodes,
        ranks_per_node=site.gpus_per_node,
        workers=need.workers,
        prefetch=need.prefetch,
        cores=node_cores(need, site),
        work=batch_stages(need, site, hits),
        step_s=need.step_s,
        step_cpu_s=need.step_cpu_s,
    )
    pool = group.worker_pool()
    warm_up = max(pool.window, WARM_UP_ROUNDS * pool.outstanding_tasks)
    steps = ceil(max(MIN_STEPS, MIN_STEP_DRAWS / group.ranks) / pool.window) * pool.window
    if (warm_up + steps) * group.ranks * len(RANK_STAGES) > MAX_EVENTS:
        warm_up = max(pool.window, pool.outstanding_tasks)
    if (warm_up + steps) * group.ranks * len(RANK_STAGES) > MAX_EVENTS:
        return None
    return simulate_ranks(group, steps, warm_up)


def _epochs(need: RankNeed, site: Cluster, price: StorePrice) -> Iterator[FleetEpoch]:
    """Forecast the epochs that differ: without a cache all are like the first."""
    known: list[float] = []
    for name, number in EPOCHS:
        hits = cache_hit_share(site, need.dataset_bytes, number)
        if hits not in known:
            known.append(hits)
            yield forecast_epoch(need, site, name, hits, price)


def _packing(need: RankNeed, site: Cluster) -> Iterator[PackedForecast]:
    """Forecast each form of the data that differs from the present one."""
    forms = (
        ("as it is", need),
        ("in shards, read in blocks", in_blocks(need)),
        ("and images at half the side", with_half_side(need)),
    )
    for name, form in forms:
        if form is not None:
            first = cluster_bounds(form, site)[0]
            limit = ThroughputLimit(name=first.name, samples_s=first.rate * need.samples_per_batch * site.ranks)
            yield PackedForecast(name=name, demanded=fleet_demand(form, site), first=limit)


def _price(size_bytes: float | None, requests: float | None, price: StorePrice) -> float | None:
    """Return the price of an epoch; None where no price is given, or a priced amount was not counted."""
    parts = [(size_bytes, price.of_gb, 1e9), (requests, price.of_million_requests, 1e6)]
    priced = [(amount, each, unit) for amount, each, unit in parts if each is not None]
    if not priced or any(amount is None for amount, _, _ in priced):
        return None
    return sum(amount / unit * each for amount, each, unit in priced if amount is not None)


def _notes(need: RankNeed, site: Cluster) -> Iterator[str]:
    limits = {
        "the network of a node (--network)": site.network_bytes_s,
        "the store's bandwidth (--store-bandwidth)": site.store_bytes_s,
        "the requests that it serves (--store-requests)": site.store_requests_s,
    }
    if unknown := [name for name, limit in limits.items() if limit is None]:
        yield f"Not known, so only the demand is reported: {', '.join(unknown)}"
    if need.batch_bytes is None:
        yield "Bytes were not counted, so network, store and cache are left out"
    elif need.batch_requests is None:
        yield "Requests were not counted, so they are left out"
    if site.cache_bytes and need.dataset_bytes is None:
        yield "The size of the dataset is not known, so the cache is left out: give --dataset-bytes"
    elif site.cache_bytes and site.nodes > 1 and need.dataset_bytes is not None:
        copied = format_bytes(site.nodes * need.dataset_bytes)
        yield (
            f"Caches are assumed to keep blocks: to keep whole shards each node would copy all of them, {copied} in all"
        )
    if not np.ptp(need.step_s):
        yield "Steps are assumed to be all alike: ranks that vary would wait for the slowest of them"
    else:
        yield (
            "Ranks are assumed to vary as the steps of one rank do, independently: events that delay all ranks at once "
            "(logging, a checkpoint) are overestimated, and rare ones count at most as the longest recorded step"
        )
