"""Makes the source of a loader from its options, and refuses options that cannot be used together, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.data.decode.dataset_program import DatasetSamples
from penstock.data.fields.base import Field
from penstock.data.order.batches import BatchPlan
from penstock.data.order.ranks import RankShare, find_ranks
from penstock.data.order.sampler import BatchOrder, BatchSamplerOrder, SamplerOrder, SeededOrder
from penstock.data.sources.base import Source
from penstock.data.sources.map_dataset import DatasetSource, is_dataset
from penstock.data.sources.sampled_shards import SampledShardSource
from penstock.data.sources.shard_groups import find_shard_groups
from penstock.data.sources.shards import OrderSettings, SampleFunctions, ShardSource
from penstock.errors import SettingError
from penstock.options import LANES, LoaderOptions, default_lanes
from penstock.runtime.engine_size import choose_executor

GUESSED_BATCH = 64
"""Samples per batch that the first plan of memory assumes where a batch_sampler decides how many there are."""


def make_source(data: Any, fields: Mapping[str, Field] | None, options: LoaderOptions) -> Source:
    """Return the source for shards with their fields, or for a map-style dataset."""
    reading = options.reading
    lanes = LANES if reading.lanes is None else reading.lanes
    order = OrderSettings(options.shuffle, options.seed, lanes, reading.block_bytes, options.max_samples)
    make = _dataset_source if is_dataset(data) else _shard_source
    return make(data, fields, options, order)


def _shard_source(
    shards: Any, fields: Mapping[str, Field] | None, options: LoaderOptions, order: OrderSettings
) -> Source:
    _check_order(options)
    runs_user_code = options.transform is not None or options.collate_fn is not None
    in_processes = choose_executor(options.engine, runs_user_code=runs_user_code) == "process"
    functions = SampleFunctions(options.transform, options.outputs, options.collate_fn, options.filter, in_processes)
    groups = find_shard_groups(shards)
    # a sampler's order is taken to be that of this rank already
    ranks = RankShare() if options.has_user_order else find_ranks(options.rank, options.world_size)
    if options.reading.lanes is None:
        order = replace(order, lanes=default_lanes(ranks.world_size))
    plan = BatchPlan() if options.batch_sampler is not None else _batch_plan(options, ranks)
    page_cache, cache = options.reading.page_cache, options.cache
    source = ShardSource(groups, fields or {}, order, functions, options.errors.on_error, plan, page_cache, cache)
    if not options.has_user_order:
        return source
    if len(groups) > 1:
        raise SettingError("weights of shards cannot be used with a sampler, which decides the order itself")
    return SampledShardSource(source, _batch_order(len(source), options), options.batch_size or GUESSED_BATCH)


def _dataset_source(
    dataset: Any, fields: Mapping[str, Field] | None, options: LoaderOptions, order: OrderSettings
) -> DatasetSource:
    if fields is not None:
        raise SettingError("fields are for shards; a dataset's samples are used as it returns them")
    only_shards = {"cache": options.cache is not None, "filter": options.filter is not None, "outputs": options.outputs}
    for name in [*options.reading.changed(), *(name for name, is_set in only_shards.items() if is_set)]:
        raise SettingError(f"{name} is for shards; a dataset reads its samples itself, in the workers")
    _check_order(options)
    in_processes = choose_executor(options.engine, runs_user_code=True) == "process"
    samples = DatasetSamples(dataset, order.seed, options.transform, in_processes)
    return DatasetSource(samples, _batch_order(len(dataset), options), options.collate_fn, options.errors.on_error)


def _batch_order(length: int, options: LoaderOptions) -> BatchOrder:
    """Return the order of batches where it is not that of blocks and lanes: a sampler's, or a dataset's own shuffle."""
    if options.batch_sampler is not None:
        return BatchSamplerOrder(options.batch_sampler)
    if options.sampler is not None:
        return SamplerOrder(options.sampler, _batch_plan(options, RankShare()))
    plan = _batch_plan(options, find_ranks(options.rank, options.world_size))
    samples = length if options.max_samples is None else min(length, options.max_samples)
    return SeededOrder(length, samples, options.shuffle, options.seed, plan)


def _batch_plan(options: LoaderOptions, ranks: RankShare) -> BatchPlan:
    if options.batch_size is None:
        raise SettingError("batch_size is missing")
    return BatchPlan(options.batch_size, options.drop_last, ranks)


def _check_order(options: LoaderOptions) -> None:
    """Refuse options that contradict a sampler or a collate_fn."""
    if options.collate_fn is not None and options.device != "cpu":
        raise SettingError(
            f"what collate_fn returns is delivered unchanged, so device={options.device!r} cannot be used",
            advice="Move it in batch_transform",
        )
    conflicts: dict[str, bool] = {}
    if options.has_user_order:
        conflicts |= {
            "shuffle": options.shuffle,
            "max_samples": options.max_samples is not None,
            "rank and world_size": options.rank is not None or options.world_size is not None,
        }
    if options.batch_sampler is not None:
        conflicts |= {
            "sampler": options.sampler is not None,
            "batch_size": options.batch_size is not None,
            "drop_last": options.drop_last,
        }
    for name in (name for name, is_set in conflicts.items() if is_set):
        which = "sampler" if options.batch_sampler is None else "batch_sampler"
        raise SettingError(f"{name} cannot be used with a {which}, which decides that itself")
