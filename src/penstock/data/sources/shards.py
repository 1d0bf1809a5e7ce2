"""A source of samples in shards: what a sample is, what an epoch is, what a key is."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np

from penstock.core.contracts import BatchRequest, EpochRequest
from penstock.core.slab_layout import SlabLayout, SlotSpec
from penstock.core.types import Ids
from penstock.data.decode.decoder import Decoder, Transform
from penstock.data.fields.base import Field
from penstock.data.fields.gpu_image import GpuDecodedImage
from penstock.data.order.batches import BatchPlan
from penstock.data.order.blocks import BlockTable
from penstock.data.order.mix import Mix, share_by_weight
from penstock.data.order.shuffle import epoch_order
from penstock.data.read.block_source import MixedBlockSource, ShardBlockSource
from penstock.data.read.sample_index import SampleIndex, make_sample_index
from penstock.data.sources.base import ReadSizes, add_location
from penstock.data.sources.shard_groups import ShardGroup, weights_text
from penstock.errors import PenstockError, SampleError, SettingError, ShardError
from penstock.options import BLOCK_BYTES, CacheOptions
from penstock.shards.index import ShardIndex
from penstock.shards.scan import index_shards
from penstock.shards.validate import ShardProblem, complete_samples
from penstock.storage.object_store.url import is_remote
from penstock.storage.page_cache import fits_in_page_cache

log = logging.getLogger("penstock")

BATCHES_IN_MEMORY = 3
"""Batches whose bytes are in the arena at a time, at least: one is decoded, one waits for workers, one is read."""
MIN_REMOTE_BLOCKS = 32
"""Blocks in use, at least, where reads wait for a network: as many as the engine may have in flight."""
MAX_TRIES = 16
"""Samples tried until one is good, where bad samples are to be skipped: almost always the next one is good."""
SIZED_SAMPLES = 4
"""Samples whose sizes are compared where sizes differ: a single one may be the smallest of all."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """The settings that decide the order of an epoch, together with the shards."""

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
        groups: Sequence[ShardGroup],
        fields: Mapping[str, Field],
        order: OrderSettings,
        transform: Transform | None,
        on_bad: Literal["raise", "skip"],
        batch_plan: BatchPlan = BatchPlan(),  # noqa: B008 (it is frozen)
        page_cache: bool | None = None,
        cache: CacheOptions | None = None,
    ) -> None:
        if not fields:
            raise SettingError("a loader needs fields", advice='For example fields={"image": Image(".jpg", size=224)}')
        self.fields = dict(fields)
        self.order_settings = order
        self.batch_plan = batch_plan
        self.transform = transform
        self._on_bad = on_bad
        shards = [path for group in groups for path in group.paths]
        indexes = _indexes(shards)
        wanted = [field.suffixes for field in self.fields.values()]
        complete: list[Ids] = []
        self.problems: list[tuple[str, ShardProblem]] = []
        for number, (path, index) in enumerate(zip(shards, indexes, strict=True)):
            indexes[number] = index = index.paired_by(_declared_suffixes(index, wanted))
            required = [_present_suffix(index, alternatives) for alternatives in wanted]
            numbers, problems = complete_samples(index, path, required, on_bad)
            complete.append(numbers)
            self.problems += [(path, problem) for problem in problems]
        self.sample_index = make_sample_index(shards, indexes, complete, wanted)
        if not len(self.sample_index):
            raise ShardError("the shards have no whole sample with all these fields", stage="pair")
        self._warn_of_problems(sum(map(len, indexes)) - len(self.sample_index))
        self.groups = groups
        if page_cache is None:
            page_cache = fits_in_page_cache(sum(index.binding.size for index in indexes))
        self.page_cache = page_cache
        self.cache = cache
        blocks = ShardBlockSource(self.sample_index, order.block_bytes, direct=not self.page_cache, cache=cache)
        self.mix = _mix(groups, self.sample_index, blocks.blocks, len(self)) if len(groups) > 1 else None
        self.block_source = blocks if self.mix is None else MixedBlockSource(blocks, self.mix)

    def _warn_of_problems(self, left_out: int) -> None:
        """Log a single warning; `penstock shards check` lists all samples with problems."""
        if left_out:
            shard, first = self.problems[0]
            example = ShardError(f"{first.kind} part: {first.reason}", shard=shard, member=first.member)
            log.warning("%d samples are not whole and are left out; the first: %s", left_out, example)

    def __len__(self) -> int:
        total = len(self.sample_index)
        max_samples = self.order_settings.max_samples
        return total if max_samples is None else min(total, max_samples)

    def order(self, epoch: int) -> Ids:
        """Return the samples of an epoch, in order, over all ranks."""
        settings = self.order_settings
        if self.mix is not None:
            return self.mix.order(seed=settings.seed, epoch=epoch, lanes=settings.lanes, shuffle=settings.shuffle)
        order = epoch_order(
            self.block_source.blocks, seed=settings.seed, epoch=epoch, lanes=settings.lanes, shuffle=settings.shuffle
        )
        return order[: len(self)]

    @property
    def runs_user_code(self) -> bool:
        """Whether workers run code of the user: here only a transform."""
        return self.transform is not None

    def num_batches(self) -> int:
        """Return the number of batches in an epoch on this rank."""
        return self.batch_plan.num_batches(len(self))

    def samples_per_rank(self) -> int:
        """Return the number of samples in an epoch on this rank."""
        return self.batch_plan.samples_per_rank(len(self))

    def batch_requests(self, epoch: int, position: int) -> Iterator[BatchRequest]:
        """Yield this rank's batches of the epoch from that position on."""
        return self.batch_plan.batch_requests(self.order(epoch), epoch, position)

    def begin_epoch(self, epoch: int, position: int) -> EpochRequest:
        """Decide whether workers read, and return the epoch's batches."""
        self.block_source.choose_readers()
        batches = list(self.batch_requests(epoch, position))
        samples = np.concatenate([np.zeros(0, np.int64), *(batch.samples for batch in batches)])
        return EpochRequest(iter(batches), self._block_uses(samples).item, self.block_source.worker_read_bytes)

    def read_sizes(self) -> ReadSizes:
        """Return the sizes of the blocks, and how many of them the order uses at a time."""
        sizes = self.block_source.block_sizes()
        settings = self.order_settings
        lanes = settings.lanes // self.batch_plan.ranks.world_size if settings.shuffle else 1
        of_batches = BATCHES_IN_MEMORY * self.batch_plan.batch_size * len(sizes) // len(self.sample_index)
        remote = any(map(is_remote, self.sample_index.paths))
        in_use = max(MIN_REMOTE_BLOCKS if remote else 1, lanes * len(self.groups) + of_batches)
        return ReadSizes(sizes, max(1, min(in_use, len(sizes))), remote)

    def _block_uses(self, samples: Ids) -> Ids:
        """Count how many of these samples each block has."""
        return np.bincount(self.block_source.containing_blocks(samples), minlength=len(self.block_source.blocks))

    def keys(self, samples: Ids) -> list[str]:
        """Return the samples' keys."""
        numbers = samples if self.mix is None else self.mix.sample_numbers(samples)
        return self.sample_index.keys(numbers)

    def location(self, sample: int, suffix: str | None = None) -> tuple[str, str, int]:
        """Return shard, member and offset of that part of a sample; without a suffix, its key and its first part."""
        number = sample if self.mix is None else int(self.mix.sample_numbers(np.array([sample]))[0])
        return self.sample_index.location(number, suffix)

    def slab_layout(self, batch_size: int) -> SlabLayout:
        """Return the layout of a batch, inferred from the first samples."""
        return infer_layout(self._good_samples(), self.fields, batch_size)

    def _good_samples(self) -> Iterator[dict[str, Any]]:
        """Yield the first samples, decoded and transformed in this process; raise an error if none is good."""
        read = lru_cache(maxsize=1)(self._read)  # neighbouring samples lie in one block
        found, failure = False, None
        for number in range(min(MAX_TRIES, len(self.sample_index))):
            try:
                sample = self._sample(number, read)
            except PenstockError as error:  # of a bad sample behind a good one; it is reported when it is delivered
                if not found and (self._on_bad == "raise" or not isinstance(error, SampleError)):
                    raise
                failure = failure or error
                continue
            found = True
            yield sample
        if not found and failure is not None:
            raise failure

    def _read(self, block: int) -> memoryview:
        memory = memoryview(bytearray(self.block_source.block_bytes(block)))
        self.block_source.read_block(block, memory)
        return memory

    def _sample(self, number: int, read: Callable[[int], memoryview]) -> dict[str, Any]:
        """Return one sample in memory of its own."""
        sample, zero = np.array([number], np.int64), np.zeros(1, np.int64)
        memory = read(int(self.block_source.containing_blocks(sample)[0]))
        row = self.block_source.task_rows(sample, zero, zero)[0].tolist()
        decoder = Decoder(self.fields, SlabLayout({}, 1), self.order_settings.seed, self.transform)
        try:
            return decoder.sample(row, 0, memory)
        except PenstockError as error:
            add_location(error, number, self)
            raise

    def worker_program(self, layout: SlabLayout) -> Decoder:
        """Return what workers run."""
        seed, files = self.order_settings.seed, self.block_source.worker_files()
        return Decoder(self.fields, layout, seed, self.transform, files)

    def identity(self) -> dict[str, str | int | bool]:
        """Return what decides the order of an epoch: where all of it is the same, a position means the same sample."""
        settings = self.order_settings
        return {
            "seed": settings.seed,
            "shuffle": settings.shuffle,
            "lanes": settings.lanes,
            "block_bytes": settings.block_bytes,
            "samples": len(self),
            "weights": weights_text(self.groups),
            "fingerprint": self._fingerprint,
        }

    @cached_property
    def _fingerprint(self) -> str:  # computed once: a checkpoint may be written at every step
        """A hash of the samples and their blocks, but not of paths and times, so that shards may be moved."""
        digest = hashlib.sha256(self.block_source.blocks.first_samples.astype("<i8").tobytes())
        if self.mix is not None:
            for column in (self.mix.first_blocks, self.mix.samples):
                digest.update(column.astype("<i8").tobytes())
        for index, numbers in zip(self.sample_index.indexes, self.sample_index.numbers, strict=True):
            digest.update(f"{index.binding.size} {len(numbers)}\n".encode())
            for column in (numbers, index.sample_ids, index.lengths):
                digest.update(column.astype("<i8").tobytes())
            digest.update("\n".join(index.keys).encode())
        return digest.hexdigest()[:32]

    def assemble(self, values: dict[str, Any], samples: Ids) -> dict[str, Any]:
        """Return the fields, and the samples' keys under "__key__"."""
        return {**values, "__key__": self.keys(samples)}

    def __repr__(self) -> str:
        return f"{len(self.sample_index.paths)} shards"

    def close(self) -> None:
        """Close the shards."""
        self.block_source.close()


def infer_layout(samples: Iterator[Mapping[str, Any]], fields: Mapping[str, Field], batch_size: int) -> SlabLayout:
    """Infer the layout of a batch from its first samples.

    The first sample decides which arrays there are. An array without a fixed shape gets 1.5 times the bytes that the
    largest of the first few samples needs; the rare one that needs more is sent over the worker's pipe.
    """
    slots: dict[str, SlotSpec] = {}
    largest: dict[str, int] = {}
    for name, value in next(samples).items():
        field = fields.get(name)
        if field is not None and not field.fixed_shape:
            if isinstance(value, np.ndarray):
                largest[name] = value.nbytes
        elif isinstance(value, np.ndarray | np.generic):
            slots[name] = SlotSpec(value.shape, value.dtype.str)
    for sample in islice(samples, SIZED_SAMPLES - 1) if largest else ():
        largest = {name: max(size, getattr(sample.get(name), "nbytes", 0)) for name, size in largest.items()}
    ragged_bytes = {name: max(1, size * 3 // 2) for name, size in largest.items()}
    maybe_encoded = tuple(name for name in slots if isinstance(fields.get(name), GpuDecodedImage))
    return SlabLayout(slots, batch_size, ragged_bytes, maybe_encoded)


def _indexes(shards: Sequence[str]) -> list[ShardIndex]:
    found: dict[str, ShardIndex] = {}
    for scanned in index_shards(shards):
        if scanned.index is None:
            raise scanned.error or ShardError("cannot be indexed", shard=scanned.shard)
        found[scanned.shard] = scanned.index
    return [found[shard] for shard in shards]


def _mix(groups: Sequence[ShardGroup], sample_index: SampleIndex, blocks: BlockTable, samples: int) -> Mix:
    """Divide an epoch of that many samples between the groups; refuse a group that would give none."""
    first_shards = np.concatenate(([0], np.cumsum([len(group.paths) for group in groups])))
    for group, available in zip(groups, np.diff(sample_index.first_samples[first_shards]).tolist(), strict=True):
        if not available:
            raise ShardError(f"group {group.name!r} has no whole sample with all these fields", stage="pair")
    counts = share_by_weight(samples, [group.weight for group in groups])
    for group, count in zip(groups, counts.tolist(), strict=True):
        if not count:
            raise SettingError(
                f"the weight of {group.name!r} is so small that an epoch of {samples} has none of its samples",
                advice="Give it more weight, or leave it out",
            )
    return Mix(blocks, np.searchsorted(blocks.shards, first_shards), counts)


def _declared_suffixes(index: ShardIndex, wanted: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the fields' suffixes, to split names by them, if the inferred suffixes lack one that a field needs."""
    if all(any(suffix in index.suffixes for suffix in alternatives) for alternatives in wanted):
        return ()
    return tuple(suffix for alternatives in wanted for suffix in alternatives)


def _present_suffix(index: ShardIndex, alternatives: tuple[str, ...]) -> str:
    """Return the alternative that this shard uses, for the pairing rule; the first one if it has none."""
    return next((suffix for suffix in alternatives if suffix in index.suffixes), alternatives[0])
