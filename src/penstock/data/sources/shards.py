"""Everything the loader needs to know of a set of shards: what a sample is, what an epoch is, what a key is."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.slab_layout import SlabLayout
from penstock.data.batch.delivery import locate
from penstock.data.batch.infer_layout import infer_layout
from penstock.data.decode.decoder import Decoder, Transform
from penstock.data.fields.base import Field
from penstock.data.order.batches import BatchIndices, BatchPlan
from penstock.data.order.blocks import BlockTable
from penstock.data.order.mix import Mix, MixedBlockSource, shares
from penstock.data.order.shuffle import epoch_order
from penstock.data.read.reader import ShardBlockSource
from penstock.data.read.sample_index import SampleIndex, make_sample_index
from penstock.data.sources.base import EpochShare, ReadSizes
from penstock.errors import PenstockError, SampleError, SettingError, ShardError
from penstock.options import BLOCK_BYTES, CacheOptions
from penstock.shards.index import ShardIndex
from penstock.shards.scan import index_shards
from penstock.shards.validate import ShardProblem, complete_samples
from penstock.storage.object_store.url import is_remote, split_query
from penstock.storage.page_cache import fits_in_page_cache
from penstock.storage.paths import expand_shard_paths

Shards = (
    str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Mapping[str, float] | Mapping[os.PathLike[str], float]
)
"""What `expand_shard_paths` takes; or what it takes as a string, with the share of the samples that is to come from there."""


@dataclass(frozen=True)
class ShardGroup:
    """Shards whose samples are drawn together."""

    paths: Sequence[str]
    name: str = ""
    """As the user wrote it, but for the query of a web address."""
    weight: float = 1.0


def find_shard_groups(shards: Shards) -> list[ShardGroup]:
    """One source; of a mapping, one for each entry."""
    if not isinstance(shards, Mapping):
        return [ShardGroup(expand_shard_paths(shards))]
    if not shards:
        raise SettingError("a mixture needs sources", advice='For example {"web/*.tar": 3, "own/*.tar": 1}')
    named = [(name, split_query(str(name))[0], weight) for name, weight in shards.items()]
    sources = [
        ShardGroup(expand_shard_paths(name), written, _weight(written, weight)) for name, written, weight in named
    ]
    _check_apart(sources)
    return sources


def _weight(name: str, weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise SettingError(
            f"the weight of {name!r} is {weight!r}, not a number above 0",
            advice="Leave a source out to give it no weight",
        )
    return float(weight)


def _check_apart(sources: Sequence[ShardGroup]) -> None:
    """A shard in two sources would have two weights."""
    owners: dict[str, ShardGroup] = {}
    for source in sources:
        for path in source.paths:
            owner = owners.setdefault(os.path.realpath(path), source)
            if owner is not source:
                raise SettingError(f"is in two sources, {owner.name!r} and {source.name!r}", shard=path)


log = logging.getLogger("penstock")

Ids = NDArray[np.int64]

UNDER_WAY = 3
"""Batches whose bytes are in memory at a time, at least: one being decoded, one waiting for workers, one being read."""
AT_ONCE = 32
"""Blocks in use, at least, where reads wait for a network: as many as the engine may have in flight."""
TRIES = 16
"""Samples looked at for one that is good, where bad ones are to be skipped: the next one is, almost always."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """What decides the order of an epoch, together with the shards."""

    shuffle: bool = False
    seed: int = 0
    lanes: int = 64
    block_bytes: int = BLOCK_BYTES
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.block_bytes < 1:
            raise SettingError("lanes and block_bytes must be above 0")
        if self.seed < 0:
            raise SettingError(f"seed={self.seed} is below 0")
        if self.max_samples is not None and self.max_samples < 1:
            raise SettingError(f"max_samples={self.max_samples} leaves nothing to deliver")


class ShardSource:
    """Indexed shards and declared fields."""

    def __init__(
        self,
        sources: Sequence[ShardGroup],
        fields: Mapping[str, Field],
        order: OrderSettings,
        transform: Transform | None,
        on_bad: Literal["raise", "skip"],
        cut: BatchPlan = BatchPlan(),  # noqa: B008 (it is frozen)
        page_cache: bool | None = None,
        cache: CacheOptions | None = None,
    ) -> None:
        if not fields:
            raise SettingError("a loader needs fields", advice='For example fields={"image": Image(".jpg", size=224)}')
        self.fields = dict(fields)
        self.order_settings = order
        self.cut = cut
        self.transform = transform
        self._on_bad = on_bad
        shards = [path for source in sources for path in source.paths]
        indexes = _indexes(shards)
        wanted = [field.suffixes for field in self.fields.values()]
        whole: list[Ids] = []
        self.problems: list[tuple[str, ShardProblem]] = []
        for number, (path, index) in enumerate(zip(shards, indexes, strict=True)):
            indexes[number] = index = index.paired_by(_stated(index, wanted))
            required = [_present(index, alternatives) for alternatives in wanted]
            numbers, problems = complete_samples(index, path, required, on_bad)
            whole.append(numbers)
            self.problems += [(path, problem) for problem in problems]
        self.dataset = make_sample_index(shards, indexes, whole, wanted)
        if not len(self.dataset):
            raise ShardError("the shards have no whole sample with all these fields", stage="pair")
        self._tell_problems(sum(map(len, indexes)) - len(self.dataset))
        self.sources = sources
        self.page_cache = (
            fits_in_page_cache(sum(index.binding.size for index in indexes)) if page_cache is None else page_cache
        )
        self.cache = cache
        shard_supply = ShardBlockSource(self.dataset, order.block_bytes, direct=not self.page_cache, cache=cache)
        self.mix = _mix(sources, self.dataset, shard_supply.blocks, len(self)) if len(sources) > 1 else None
        self.supply = shard_supply if self.mix is None else MixedBlockSource(shard_supply, self.mix)

    def _tell_problems(self, left_out: int) -> None:
        """Once: which samples they are is for `penstock shards check` to say."""
        if left_out:
            shard, first = self.problems[0]
            example = ShardError(f"{first.kind} part: {first.reason}", shard=shard, member=first.member)
            log.warning("%d samples are not whole and are left out; the first: %s", left_out, example)

    def __len__(self) -> int:
        total = len(self.dataset)
        most = self.order_settings.max_samples
        return total if most is None else min(total, most)

    def order(self, epoch: int) -> Ids:
        """The samples of an epoch, in order, over all ranks."""
        settings = self.order_settings
        if self.mix is not None:
            return self.mix.order(seed=settings.seed, epoch=epoch, lanes=settings.lanes, shuffle=settings.shuffle)
        order = epoch_order(
            self.supply.blocks, seed=settings.seed, epoch=epoch, lanes=settings.lanes, shuffle=settings.shuffle
        )
        return order[: len(self)]

    @property
    def own_code(self) -> bool:
        """Whether workers run nothing of the user's."""
        return self.transform is None

    def count(self) -> int:
        """Batches of an epoch on this rank."""
        return self.cut.count(len(self))

    def per_rank(self) -> int:
        """Samples of an epoch on this rank."""
        return self.cut.samples(len(self))

    def portions(self, epoch: int, position: int) -> Iterator[BatchIndices]:
        """This rank's batches of the epoch from that position on."""
        return self.cut.portions(self.order(epoch), position)

    def share(self, epoch: int, position: int) -> EpochShare:
        """The same, to be delivered now."""
        self.supply.look()
        portions = list(self.portions(epoch, position))
        mine = np.concatenate([np.zeros(0, np.int64), *(portion.samples for portion in portions)])
        return EpochShare(iter(portions), self.uses(mine).item, worker_read_bytes=self.supply.worker_read_bytes)

    def reading(self) -> ReadSizes:
        """Blocks, and how many of them an order goes through at a time."""
        sizes = self.supply.block_sizes()
        settings = self.order_settings
        lanes = settings.lanes // self.cut.ranks.world_size if settings.shuffle else 1
        under_way = UNDER_WAY * self.cut.batch_size * len(sizes) // len(self.dataset)
        remote = any(map(is_remote, self.dataset.paths))
        in_use = max(AT_ONCE if remote else 1, lanes * len(self.sources) + under_way)
        return ReadSizes(sizes, max(1, min(in_use, len(sizes))), remote)

    def uses(self, samples: Ids) -> Ids:
        """How many of these samples each block has."""
        return np.bincount(self.supply.homes_of(samples), minlength=len(self.supply.blocks))

    def keys(self, samples: Ids) -> list[str]:
        """Their keys."""
        own = samples if self.mix is None else self.mix.own_numbers(samples)
        return self.dataset.keys(own)

    def where(self, sample: int, suffix: str | None = None) -> tuple[str, str, int]:
        """Shard, name and offset of that part of a sample; without a suffix, its key and first part."""
        own = sample if self.mix is None else int(self.mix.own_numbers(np.array([sample]))[0])
        return self.dataset.where(own, suffix)

    def layout(self, batch_size: int) -> SlabLayout:
        """The slots of a batch, as the first samples have them."""
        return infer_layout(self._good_samples(), self.fields, batch_size)

    def _good_samples(self) -> Iterator[dict[str, Any]]:
        """From the first on, decoded and transformed here and now; there is one, or an error that says why not."""
        read = lru_cache(maxsize=1)(self._read)  # neighbours lie in one block
        found, failure = False, None
        for number in range(min(TRIES, len(self.dataset))):
            try:
                sample = self._sample(number, read)
            except PenstockError as error:  # one behind a good sample is told when its turn has come
                if not found and (self._on_bad == "raise" or not isinstance(error, SampleError)):
                    raise
                failure = failure or error
                continue
            found = True
            yield sample
        if not found and failure is not None:
            raise failure

    def _read(self, block: int) -> memoryview:
        memory = memoryview(bytearray(self.supply.block_bytes(block)))
        self.supply.read_block(block, memory)
        return memory

    def _sample(self, number: int, read: Callable[[int], memoryview]) -> dict[str, Any]:
        """One sample, on its own."""
        sample, zero = np.array([number], np.int64), np.zeros(1, np.int64)
        memory = read(int(self.supply.homes_of(sample)[0]))
        row = self.supply.task_rows(sample, zero, zero)[0].tolist()
        decoder = Decoder(self.fields, SlabLayout({}, 1), self.order_settings.seed, self.transform)
        try:
            return decoder.sample(row, 0, memory)
        except PenstockError as error:
            locate(error, number, self)
            raise

    def work(self, layout: SlabLayout) -> Decoder:
        """What workers run."""
        return Decoder(self.fields, layout, self.order_settings.seed, self.transform, self.supply.straight_files())

    def identity(self) -> dict[str, str | int | bool]:
        """What decides the order of an epoch: where all of it is the same, a position means the same sample."""
        settings = self.order_settings
        return {
            "seed": settings.seed,
            "shuffle": settings.shuffle,
            "lanes": settings.lanes,
            "block_bytes": settings.block_bytes,
            "samples": len(self),
            "weights": _written(self.sources),
            "fingerprint": self._fingerprint,
        }

    @cached_property
    def _fingerprint(self) -> str:  # once: a checkpoint may be written at every step
        """Of the samples and the blocks they lie in; not of paths or times, so that shards may move."""
        digest = hashlib.sha256(self.supply.blocks.first_samples.astype("<i8").tobytes())
        if self.mix is not None:
            for column in (self.mix.sources, self.mix.samples):
                digest.update(column.astype("<i8").tobytes())
        for index, numbers in zip(self.dataset.indexes, self.dataset.numbers, strict=True):
            digest.update(f"{index.binding.size} {len(numbers)}\n".encode())
            for column in (numbers, index.sample_ids, index.lengths):
                digest.update(column.astype("<i8").tobytes())
            digest.update("\n".join(index.keys).encode())
        return digest.hexdigest()[:32]

    def finish(self, values: dict[str, Any], samples: Ids) -> dict[str, Any]:
        """The fields, and the samples' keys."""
        return {**values, "__key__": self.keys(samples)}

    def __repr__(self) -> str:
        return f"{len(self.dataset.paths)} shards"

    def close(self) -> None:
        """Close the shards."""
        self.supply.close()


def _indexes(shards: Sequence[str]) -> list[ShardIndex]:
    found: dict[str, ShardIndex] = {}
    for scanned in index_shards(shards):
        if scanned.index is None:
            raise scanned.error or ShardError("cannot be indexed", shard=scanned.shard)
        found[scanned.shard] = scanned.index
    return [found[shard] for shard in shards]


def _mix(sources: Sequence[ShardGroup], dataset: SampleIndex, blocks: BlockTable, samples: int) -> Mix:
    """Who gives how much to an epoch of that many samples; a source that would give nothing is refused."""
    first_shards = np.concatenate(([0], np.cumsum([len(source.paths) for source in sources])))
    for source, has in zip(sources, np.diff(dataset.firsts[first_shards]).tolist(), strict=True):
        if not has:
            raise ShardError(f"source {source.name!r} has no whole sample with all these fields", stage="pair")
    given = shares(samples, [source.weight for source in sources])
    for source, gives in zip(sources, given.tolist(), strict=True):
        if not gives:
            raise SettingError(
                f"the weight of {source.name!r} is so small that none of its samples comes in an epoch of {samples}",
                advice="Give it more weight, or leave it out",
            )
    return Mix(blocks, np.searchsorted(blocks.shards, first_shards), given)


def _written(sources: Sequence[ShardGroup]) -> str:
    """Weights as one would write them, 3:1; those of one source do not matter."""
    weights = [source.weight for source in sources] if len(sources) > 1 else [1.0]
    return ":".join(repr(weight).removesuffix(".0") for weight in weights)


def _stated(index: ShardIndex, wanted: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Suffixes to split names by, if those that were inferred do not offer what is wanted."""
    if all(any(suffix in index.suffixes for suffix in alternatives) for alternatives in wanted):
        return ()
    return tuple(suffix for alternatives in wanted for suffix in alternatives)


def _present(index: ShardIndex, alternatives: tuple[str, ...]) -> str:
    """The alternative this shard uses, for the pairing rule; the first one if it has none."""
    return next((suffix for suffix in alternatives if suffix in index.suffixes), alternatives[0])
