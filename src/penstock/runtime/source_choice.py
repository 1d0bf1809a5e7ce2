"""Which feed a loader's arguments ask for; what cannot go together is refused here, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock.data.decode.map_samples import DatasetSamples
from penstock.data.fields.base import Field
from penstock.data.order.batches import BatchPlan
from penstock.data.order.ranks import find_ranks
from penstock.data.order.sampler import BatchOrder, BatchSamplerOrder, SamplerOrder, SeededOrder
from penstock.data.order.shuffle import RankShare
from penstock.data.sources.base import Source
from penstock.data.sources.map_dataset import DatasetSource, is_dataset
from penstock.data.sources.sampled_shards import SampledShardSource
from penstock.data.sources.shards import OrderSettings, ShardSource, find_shard_groups
from penstock.errors import SettingError
from penstock.options import BatchSettings, EngineSettings, ErrorSettings
from penstock.runtime.start import choose_executor
from penstock.storage.shard_cache.cache_tier import CacheSettings

GUESSED_BATCH = 64
"""Of a batch_sampler that decides how many samples a batch has: for the first plan of memory."""


@dataclass(frozen=True)
class UserSampling:
    """What users bring along, as they would to a DataLoader."""

    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    @classmethod
    def of(cls, sampler: Any, batch_sampler: Any, collate_fn: Any) -> UserSampling:
        """A sampler that gives whole batches, as those of penstock.train do, is a batch sampler."""
        if batch_sampler is None and hasattr(sampler, "batch_size") and hasattr(sampler, "drop_last"):
            return cls(None, sampler, collate_fn)
        return cls(sampler, batch_sampler, collate_fn)

    @property
    def has_order(self) -> bool:
        """Whether the order is theirs: then it is taken to be this rank's already, as a DataLoader takes it."""
        return self.sampler is not None or self.batch_sampler is not None


@dataclass(frozen=True)
class SourceOptions:
    """A loader's arguments, as far as its feed depends on them."""

    batch: BatchSettings
    engine: EngineSettings
    errors: ErrorSettings
    order: OrderSettings
    brought: UserSampling
    transform: Callable[..., Any] | None
    rank: int | None
    world_size: int | None
    cache: CacheSettings | None = None

    def cut(self, ranks: RankShare) -> BatchPlan:
        """How the order becomes batches, where a batch_sampler does not say."""
        if self.batch.batch_size is None:
            raise SettingError("batch_size is missing")
        return BatchPlan(self.batch.batch_size, self.batch.drop_last, ranks)


def make_source(data: Any, fields: Mapping[str, Field] | None, wanted: SourceOptions) -> Source:
    """Shards with their fields, or a map-style dataset."""
    return _map_feed(data, fields, wanted) if is_dataset(data) else _shard_feed(data, fields, wanted)


def _shard_feed(shards: Any, fields: Mapping[str, Field] | None, wanted: SourceOptions) -> Source:
    brought = wanted.brought
    if brought.collate_fn is not None:
        raise SettingError(
            "collate_fn is for map-style datasets: the fields of shards say how they batch",
            advice="Use batch_transform to change batches",
        )
    _check_brought(wanted)
    on_bad: Literal["raise", "skip"] = "raise" if wanted.errors.on_error == "raise" else "skip"
    sources = find_shard_groups(shards)
    # a sampler is taken to be this rank's own
    ranks = RankShare() if brought.has_order else find_ranks(wanted.rank, wanted.world_size, wanted.order.lanes)
    cut = BatchPlan() if brought.batch_sampler is not None else wanted.cut(ranks)
    page_cache, cache = wanted.engine.page_cache, wanted.cache
    feed = ShardSource(sources, fields or {}, wanted.order, wanted.transform, on_bad, cut, page_cache, cache)
    if not brought.has_order:
        return feed
    if len(sources) > 1:
        raise SettingError("weights of shards cannot be used with a sampler, which decides the order itself")
    return SampledShardSource(feed, _picks(len(feed), wanted), wanted.batch.batch_size or GUESSED_BATCH)


def _map_feed(dataset: Any, fields: Mapping[str, Field] | None, wanted: SourceOptions) -> DatasetSource:
    if fields is not None:
        raise SettingError("fields are for shards; a dataset's samples come as it gives them")
    _check_reading(wanted)
    _check_brought(wanted)
    apart = choose_executor(wanted.engine) == "process"
    samples = DatasetSamples(dataset, wanted.order.seed, wanted.transform, apart)
    return DatasetSource(samples, _picks(len(dataset), wanted), wanted.brought.collate_fn, wanted.errors.on_error)


def _picks(length: int, wanted: SourceOptions) -> BatchOrder:
    brought, order = wanted.brought, wanted.order
    if brought.batch_sampler is not None:
        return BatchSamplerOrder(brought.batch_sampler)
    if brought.sampler is not None:
        return SamplerOrder(brought.sampler, wanted.cut(RankShare()))
    cut = wanted.cut(find_ranks(wanted.rank, wanted.world_size, None))
    samples = length if order.max_samples is None else min(length, order.max_samples)
    return SeededOrder(length, samples, order.shuffle, order.seed, cut)


def _check_reading(wanted: SourceOptions) -> None:
    plain = OrderSettings()
    given = {
        "lanes": wanted.order.lanes != plain.lanes,
        "block_bytes": wanted.order.block_bytes != plain.block_bytes,
        "readers": wanted.engine.readers is not None,
        "page_cache": wanted.engine.page_cache is not None,
        "cache": wanted.cache is not None,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise SettingError(f"{name} is for shards; a dataset reads for itself, in the workers")


def _check_brought(wanted: SourceOptions) -> None:
    brought = wanted.brought
    if brought.collate_fn is not None and wanted.batch.device != "cpu":
        raise SettingError(
            f"what collate_fn returns is delivered as it is, so device={wanted.batch.device!r} cannot be used",
            advice="Move it in batch_transform",
        )
    clashes: dict[str, bool] = {}
    if brought.has_order:
        clashes |= {
            "shuffle": wanted.order.shuffle,
            "max_samples": wanted.order.max_samples is not None,
            "rank and world_size": wanted.rank is not None or wanted.world_size is not None,
        }
    if brought.batch_sampler is not None:
        clashes |= {
            "sampler": brought.sampler is not None,
            "batch_size": wanted.batch.batch_size is not None,
            "drop_last": wanted.batch.drop_last,
        }
    for name in (name for name, is_given in clashes.items() if is_given):
        which = "sampler" if brought.batch_sampler is None else "batch_sampler"
        raise SettingError(f"{name} cannot be used with a {which}, which decides that itself")
