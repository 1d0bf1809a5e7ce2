"""A plan for many ranks: what they ask for, what they would get in the first epoch and later, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from penstock.core.format import format_bytes
from penstock.core.plan import ThroughputLimit
from penstock.model.ranks import PLACES, RankGroup, SynchronousRun, simulate_ranks
from penstock.model.workload import WARM_UP
from penstock.options import BLOCK_BYTES, LANES
from penstock.plan.fleet.cluster import Cluster, FleetDemand, bounds, cores_of, fleet_demand, hit_share, places
from penstock.plan.fleet.rank_need import RankNeed, expected_most, half_the_side, in_blocks

ENOUGH_BLOCKS = 4
"""In a lane, per epoch: lanes run out within one block of each other, and with fewer that is a large part of each."""
LEAST_BLOCK_BYTES = 64 << 10
"""Smaller reads cost their latency rather than their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """For penstock.Loader; the number of ranks must divide the lanes."""

    lanes: int
    block_bytes: int
    """That of the loader, or less where the dataset has too few of them."""
    blocks: int | None
    """In the dataset; None where its size is not known."""
    enough: bool
    """Whether every lane has its blocks."""
    least_bytes: int
    """Of a dataset that has enough blocks of the usual size."""
    shards: int
    """At least: then no two ranks need read the same file at once."""
    packed_shards: int
    """At least, where shards are compressed: such a shard is one block."""
    rank_bytes: int
    """Of blocks in use in each rank's memory, twice: one is read while the other is used up."""


def lanes_for(ranks: int, dataset_bytes: float | None) -> LanePlan:
    """The smallest number of lanes that these ranks can share, and blocks for each."""
    lanes = ranks * ceil(LANES / ranks)
    block_bytes = _block_bytes(lanes, dataset_bytes)
    blocks = None if dataset_bytes is None else int(dataset_bytes // block_bytes)
    return LanePlan(
        lanes=lanes,
        block_bytes=block_bytes,
        blocks=blocks,
        enough=blocks is None or blocks >= ENOUGH_BLOCKS * lanes,
        least_bytes=ENOUGH_BLOCKS * lanes * BLOCK_BYTES,
        shards=ranks,
        packed_shards=ENOUGH_BLOCKS * lanes,
        rank_bytes=2 * lanes // ranks * block_bytes,
    )


def _block_bytes(lanes: int, dataset_bytes: float | None) -> int:
    """Halved until there are enough, but not without end."""
    size = BLOCK_BYTES
    while dataset_bytes is not None and dataset_bytes < ENOUGH_BLOCKS * lanes * size and size > LEAST_BLOCK_BYTES:
        size //= 2
    return size


LEAST_STEPS = 24
"""That the simulator counts, in whole rounds of the workers..."""
ENOUGH_DRAWS = 2000
"""...and of few ranks as many more as make so many draws of a step: then their mean is sure."""
MOST_EVENTS = 400_000
"""Of the simulator, some seconds: where ranks × steps would take more, the laws alone are asked."""
EPOCHS = (("first", 1), ("second", 2), ("later", None))
"""Epochs that are told apart: a node meets more of the dataset with each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePrice:
    """Of the store; None where nobody said."""

    of_gb: float | None = None
    of_million_requests: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEpoch:
    """One epoch of all ranks together; amounts are None where they were not counted."""

    name: str
    hits: float
    """Share of the bytes that come from the nodes' caches."""
    limits: tuple[ThroughputLimit, ...]
    """In samples per second of all ranks, the one that bites first, then the next."""
    samples_s: float
    by: Literal["simulation", "laws"]
    data_share: float | None
    """Of the time, in which the rank that all waited for waited for its batch; None where it was not simulated."""
    others_share: float | None
    """Of the ranks' time, waiting for slower ranks."""
    store_bytes_s: float | None
    """Drawn from the store at this rate."""
    store_requests_s: float | None
    seconds: float | None
    store_bytes: float | None
    """In the whole epoch."""
    store_requests: float | None
    price: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForecast:
    """What another form of the data would change, in the first epoch, by the laws."""

    name: str
    demanded: FleetDemand
    first: ThroughputLimit
    """The bound that bites first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """All that is said about one training on many ranks."""

    source: Literal["recording", "probes"]
    site: Cluster
    cores: float
    """Of a node."""
    samples_per_batch: float
    step_s: float
    """Of a rank alone."""
    slowest_s: float
    """Of the slowest of all ranks, on average."""
    dataset_bytes: float | None
    demanded: FleetDemand
    epochs: tuple[FleetEpoch, ...]
    lanes: LanePlan
    packing: tuple[PackedForecast, ...]
    """As it is first, then what could be."""
    notes: tuple[str, ...]


def plan_fleet(need: RankNeed, site: Cluster, price: StorePrice | None = None) -> FleetPlan:
    """For ranks that go in step, one for each GPU, each with batches as large as the one that was measured."""
    return FleetPlan(
        source=need.source,
        site=site,
        cores=cores_of(need, site),
        samples_per_batch=need.samples_per_batch,
        step_s=float(need.step_s.mean()),
        slowest_s=expected_most(need.step_s, site.ranks),
        dataset_bytes=need.dataset_bytes,
        demanded=fleet_demand(need, site),
        epochs=tuple(_epochs(need, site, price or StorePrice())),
        lanes=lanes_for(site.ranks, need.dataset_bytes),
        packing=tuple(_packing(need, site)),
        notes=(*need.notes, *_notes(need, site)),
    )


def epoch_of(need: RankNeed, site: Cluster, name: str, hits: float, price: StorePrice | None = None) -> FleetEpoch:
    """With this share of the bytes from the nodes' caches."""
    found = bounds(need, site, hits)
    run = simulated(need, site, hits)
    per_step = need.samples_per_batch * site.ranks
    steps_s = found[0].rate if run is None else min(found[0].rate, run.steps_s)
    missed = 1 - hits
    drawn = [None if each is None else each * missed * site.ranks for each in (need.batch_bytes, need.batch_requests)]
    steps = None if need.samples is None else need.samples / per_step
    total = [None if each is None or steps is None else each * steps for each in drawn]
    return FleetEpoch(
        name=name,
        hits=hits,
        limits=tuple(ThroughputLimit(name=bound.name, samples_s=bound.rate * per_step) for bound in found),
        samples_s=steps_s * per_step,
        by="laws" if run is None else "simulation",
        data_share=None if run is None else run.data_share,
        others_share=None if run is None else run.others_share,
        store_bytes_s=None if drawn[0] is None else drawn[0] * steps_s,
        store_requests_s=None if drawn[1] is None else drawn[1] * steps_s,
        seconds=None if steps is None else steps / steps_s,
        store_bytes=total[0],
        store_requests=total[1],
        price=_price(total[0], total[1], price or StorePrice()),
    )


def simulated(need: RankNeed, site: Cluster, hits: float = 0.0) -> SynchronousRun | None:
    """All ranks in step; None where that would take too long."""
    crowd = RankGroup(
        nodes=site.nodes,
        ranks_per_node=site.gpus_per_node,
        workers=need.workers,
        prefetch=need.prefetch,
        cores=cores_of(need, site),
        work=places(need, site, hits),
        step_s=need.step_s,
        step_cpu_s=need.step_cpu_s,
    )
    crew = crowd.crew()
    warm_up = max(crew.window, WARM_UP * crew.tasks)
    steps = ceil(max(LEAST_STEPS, ENOUGH_DRAWS / crowd.number) / crew.window) * crew.window
    if (warm_up + steps) * crowd.number * len(PLACES) > MOST_EVENTS:
        warm_up = max(crew.window, crew.tasks)
    if (warm_up + steps) * crowd.number * len(PLACES) > MOST_EVENTS:
        return None
    return simulate_ranks(crowd, steps, warm_up)


def _epochs(need: RankNeed, site: Cluster, price: StorePrice) -> Iterator[FleetEpoch]:
    """Those that differ: without a cache all are the first."""
    seen: list[float] = []
    for name, number in EPOCHS:
        hits = hit_share(site, need.dataset_bytes, number)
        if hits not in seen:
            seen.append(hits)
            yield epoch_of(need, site, name, hits, price)


def _packing(need: RankNeed, site: Cluster) -> Iterator[PackedForecast]:
    """`first` in samples per second of all ranks."""
    forms = (
        ("as it is", need),
        ("in shards, read in blocks", in_blocks(need)),
        ("and pictures at half the side", half_the_side(need)),
    )
    for name, form in forms:
        if form is not None:
            first = bounds(form, site)[0]
            limit = ThroughputLimit(name=first.name, samples_s=first.rate * need.samples_per_batch * site.ranks)
            yield PackedForecast(name=name, demanded=fleet_demand(form, site), first=limit)


def _price(size_bytes: float | None, requests: float | None, price: StorePrice) -> float | None:
    """Of what was priced; None where nothing was, or where it was not counted."""
    parts = [(size_bytes, price.of_gb, 1e9), (requests, price.of_million_requests, 1e6)]
    asked = [(amount, each, unit) for amount, each, unit in parts if each is not None]
    if not asked or any(amount is None for amount, _, _ in asked):
        return None
    return sum(amount / unit * each for amount, each, unit in asked if amount is not None)


def _notes(need: RankNeed, site: Cluster) -> Iterator[str]:
    told = {
        "the network of a node (--network)": site.network_bytes_s,
        "the store's bandwidth (--store-bandwidth)": site.store_bytes_s,
        "the requests that it serves (--store-requests)": site.store_requests_s,
    }
    if unknown := [name for name, limit in told.items() if limit is None]:
        yield f"Not known, so only what is demanded of it is said: {', '.join(unknown)}"
    if need.batch_bytes is None:
        yield "Bytes were not counted, so nothing can be said of network, store and cache"
    elif need.batch_requests is None:
        yield "Requests were not counted, so nothing can be said of them"
    if site.cache_bytes and need.dataset_bytes is None:
        yield "How large the dataset is, is not known, so the cache is left out: give --dataset-bytes"
    elif site.cache_bytes and site.nodes > 1 and need.dataset_bytes is not None:
        copied = format_bytes(site.nodes * need.dataset_bytes)
        yield f"Caches are taken to keep blocks: to keep whole shards each node would copy all of them, {copied} in all"
    if not np.ptp(need.step_s):
        yield "Steps are taken to be all alike: ranks that vary would wait for the slowest of them"
    else:
        yield (
            "Ranks are taken to vary as steps of one rank do, each on its own: what strikes all at once (logging, a "
            "checkpoint) is counted too dearly, and what strikes seldom is not counted beyond the worst that was seen"
        )
