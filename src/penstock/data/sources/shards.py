"""A source of samples in shards: what a sample is, what an epoch is, what a key is."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np

from penstock.core.contracts import BatchRequest, EpochRequest
from penstock.core.slab_layout import SlabLayout, SlotSpec
from penstock.core.types import TENSOR_DTYPES, Ids
from penstock.data.batch.decoded_batch import PADDING
from penstock.data.batch.pytree import collated_batch
from penstock.data.decode.collate_program import CollateProgram
from penstock.data.decode.decoder import KEY, CollateFunction, DecodedSamples, Decoder, Transform
from penstock.data.fields.array import bfloat16_fields
from penstock.data.fields.base import Field, check_likes, fields_with_parts, has_fixed_shape
from penstock.data.fields.gpu_image import GpuDecodedImage
from penstock.data.order.batches import BatchPlan, one_worker_request
from penstock.data.order.blocks import BlockTable
from penstock.data.order.checkpoint import ORDER_LANES, Order
from penstock.data.order.lanes import EpochOrder
from penstock.data.order.mix import Mix, share_by_weight
from penstock.data.order.shuffle import epoch_order
from penstock.data.read.block_source import MixedBlockSource, ShardBlockSource
from penstock.data.read.page_cache_read import PageCacheFiles
from penstock.data.read.sample_index import SampleIndex, SampleInfo, WantedPart, make_sample_index
from penstock.data.sources.base import ReadSizes, add_location
from penstock.data.sources.shard_groups import ShardGroup, weights_text
from penstock.errors import PenstockError, SampleError, SettingError, ShardError
from penstock.options import BLOCK_BYTES, LANES, CacheOptions, ErrorPolicy
from penstock.shards.index import ShardIndex
from penstock.shards.scan import index_shards
from penstock.shards.validate import check_samples, complete_samples
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
    lanes: int = LANES
    block_bytes: int = BLOCK_BYTES
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.block_bytes < 1:
            raise SettingError("lanes and block_bytes must be above 0")
        if self.seed < 0:
            raise SettingError(f"seed={self.seed} is below 0")
        if self.max_samples is not None and self.max_samples < 1:
            raise SettingError(f"max_samples={self.max_samples} leaves nothing to deliver")


Outputs = Mapping[str, tuple[Sequence[int], str] | Literal["ragged"]]
"""Shape and dtype of what a transform returns, by name."""


@dataclass(frozen=True, slots=True)
class SampleFunctions:
    """The user's functions that work on samples of shards."""

    transform: Transform | None = None
    outputs: Outputs = field(default_factory=dict)
    """Shape and dtype, or "ragged", of what the transform returns; what is not named here is found by trying."""
    collate_fn: CollateFunction | None = None
    filter: Callable[[SampleInfo], bool] | None = None
    in_processes: bool = False
    """Whether worker processes run them. Only there may the global random generators be seeded."""

    def __post_init__(self) -> None:
        if self.outputs and self.transform is None:
            raise SettingError("outputs describe what a transform returns, and there is no transform")
        if self.outputs and self.collate_fn is not None:
            raise SettingError("outputs cannot be used with a collate_fn, which decides what a batch holds")


class ShardSource:
    """Indexed shards and declared fields."""

    def __init__(
        self,
        groups: Sequence[ShardGroup],
        fields: Mapping[str, Field],
        order: OrderSettings,
        functions: SampleFunctions = SampleFunctions(),  # noqa: B008 (it is frozen)
        on_error: ErrorPolicy = "raise",
        batch_plan: BatchPlan = BatchPlan(),  # noqa: B008 (it is frozen)
        page_cache: bool | None = None,
        cache: CacheOptions | None = None,
    ) -> None:
        if not fields:
            raise SettingError("a loader needs fields", advice='For example fields={"image": Image(".jpg", size=224)}')
        for name in (KEY, PADDING):
            if name in fields:
                raise SettingError(f"a field cannot be named {name!r}: batches have that entry already")
        self.fields = dict(fields)
        self.order_settings = order
        self._lanes = order.lanes
        """Lanes of the epoch that was begun last."""
        self.batch_plan = batch_plan
        self.functions = functions
        self._on_error = on_error
        shards = [path for group in groups for path in group.paths]
        indexes = _indexes(shards)
        check_likes(self.fields)
        self._bfloat16_fields = bfloat16_fields(self.fields)
        wanted = wanted_parts(self.fields)
        if not wanted:
            raise SettingError("no field reads a part of the samples", advice="Add one that does")
        complete: list[Ids] = []
        self._incomplete: list[ShardError] = []
        """An error for each sample that lacks a part."""
        self.filtered = 0
        """Samples that the user's filter has rejected."""
        for number, (path, index) in enumerate(zip(shards, indexes, strict=True)):
            indexes[number] = index = index.paired_by([part.suffixes for part in wanted])
            complete.append(self._samples_to_read(path, index, wanted))
        sends_keys = functions.transform is not None or functions.collate_fn is not None
        self.sample_index = make_sample_index(shards, indexes, complete, wanted, sends_keys=sends_keys)
        if not len(self.sample_index):
            left_out = f" ({self.filtered} were rejected by the filter)" if self.filtered else ""
            raise ShardError(f"the shards have no whole sample with all these fields{left_out}", stage="pair")
        if self._incomplete:
            log.warning(
                "%d samples are not whole and are left out; the first: %s", len(self._incomplete), self._incomplete[0]
            )
        self.groups = groups
        if page_cache is None:
            page_cache = fits_in_page_cache(sum(index.binding.size for index in indexes))
        self.page_cache = page_cache
        self.cache = cache
        blocks = ShardBlockSource(self.sample_index, order.block_bytes, direct=not self.page_cache, cache=cache)
        self.mix = _mix(groups, self.sample_index, blocks.blocks, len(self)) if len(groups) > 1 else None
        self.block_source = blocks if self.mix is None else MixedBlockSource(blocks, self.mix)

    def _samples_to_read(self, path: str, index: ShardIndex, wanted: Sequence[WantedPart]) -> Ids:
        """Return the numbers of the samples of a shard that are whole and that the filter accepts."""
        required = [part.suffixes for part in wanted if not part.optional]
        optional = [part.suffixes for part in wanted if part.optional]
        if self._on_error == "raise":
            numbers, _ = complete_samples(index, path, required, optional=optional)
        else:
            health = check_samples(index, required, optional)
            numbers = np.flatnonzero(health.complete)
            self._incomplete += [
                ShardError(
                    f"{problem.kind} part: {problem.reason}",
                    shard=path,
                    member=problem.member,
                    offset=problem.offset,
                    stage="pair",
                )
                for _, problem in health.incomplete()
            ]
        if self.functions.filter is None:
            return numbers
        accepted = [number for number in numbers.tolist() if self._accepts(path, index, number)]
        self.filtered += len(numbers) - len(accepted)
        return np.array(accepted, np.int64)

    def _accepts(self, path: str, index: ShardIndex, number: int) -> bool:
        assert self.functions.filter is not None
        sample = index.sample(number)
        info = SampleInfo(sample.key, path, {part.suffix: part.length for part in sample.parts})
        try:
            return bool(self.functions.filter(info))
        except Exception as error:
            reason = f"the filter failed: {type(error).__name__}: {error}"
            raise SampleError(reason, shard=path, member=sample.key, stage="plan") from error

    @property
    def incomplete(self) -> Sequence[PenstockError]:
        """This rank's share of the samples that lack a part; an error for each."""
        ranks = self.batch_plan.ranks
        return self._incomplete[ranks.rank :: ranks.world_size]

    @property
    def whole_samples(self) -> int:
        """This rank's share of the samples that have all parts."""
        return len(self.sample_index) // self.batch_plan.ranks.world_size

    def __len__(self) -> int:
        total = len(self.sample_index)
        max_samples = self.order_settings.max_samples
        return total if max_samples is None else min(total, max_samples)

    def order(self, epoch: int, lanes: int | None = None) -> EpochOrder:
        """Return the samples of an epoch, in order, over all ranks; `lanes` are those of the settings if not given."""
        settings = self.order_settings
        lanes = settings.lanes if lanes is None else lanes
        if self.mix is not None:
            return self.mix.order(seed=settings.seed, epoch=epoch, lanes=lanes, shuffle=settings.shuffle)
        blocks = self.block_source.blocks
        return epoch_order(blocks, seed=settings.seed, epoch=epoch, lanes=lanes, shuffle=settings.shuffle).first(
            len(self)
        )

    @property
    def marks_padding(self) -> bool:
        """Whether batches are dicts of fields, to which the marks of padding are added."""
        return self.functions.collate_fn is None

    @property
    def runs_user_code(self) -> bool:
        """Whether workers run code of the user: a transform or a collate_fn."""
        return self.functions.transform is not None or self.functions.collate_fn is not None

    def num_batches(self) -> int:
        """Return the number of batches in an epoch on this rank."""
        return self.batch_plan.num_batches(len(self))

    def samples_per_rank(self) -> int:
        """Return the number of samples in an epoch on this rank."""
        return self.batch_plan.samples_per_rank(len(self))

    def batch_requests(self, epoch: int, position: int, order: Order | None = None) -> Iterator[BatchRequest]:
        """Yield this rank's batches of the epoch from that position on."""
        lanes = (order or {}).get(ORDER_LANES)
        requests = self.batch_plan.batch_requests(self.order(epoch, lanes), epoch, position)
        return requests if self.functions.collate_fn is None else map(one_worker_request, requests)

    def begin_epoch(self, epoch: int, position: int, order: Order | None = None) -> EpochRequest:
        """Decide whether workers read, and return the epoch's batches."""
        self.block_source.choose_readers()
        order = {**self.next_order(), **(order or {})}
        self._lanes = order[ORDER_LANES]
        batches = list(self.batch_requests(epoch, position, order))
        samples = np.concatenate([np.zeros(0, np.int64), *(batch.samples for batch in batches)])
        uses = self._block_uses(samples).item
        return EpochRequest(iter(batches), uses, self.block_source.worker_read_bytes, order)

    def next_order(self) -> Order:
        """Return the number of lanes, which follows from the number of ranks."""
        return {ORDER_LANES: self.order_settings.lanes}

    def warn_if_unrepeatable(self) -> None:
        """Do nothing: the order can be repeated."""

    def read_sizes(self) -> ReadSizes:
        """Return the sizes of the blocks, and how many of them the order uses at a time."""
        sizes = self.block_source.block_sizes()
        settings = self.order_settings
        lanes = -(-self._lanes // self.batch_plan.ranks.world_size) if settings.shuffle else 1
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
        """Return the layout of a batch, inferred from the first samples; a collate_fn needs no slots."""
        if self.functions.collate_fn is not None:
            return SlabLayout({}, sys.maxsize)  # without slots a batch of any size fits
        layout = infer_layout(self._good_samples(), self.fields, batch_size, self.functions.outputs)
        if self.functions.transform is None:
            self._check_slots(layout)
        return layout

    def _check_slots(self, layout: SlabLayout) -> None:
        """Refuse a field of the user whose values have no shape, although it says that they have."""
        for name, declared in self.fields.items():
            if has_fixed_shape(self.fields, name) and name not in layout.slots:
                raise SettingError(
                    f"{name}: the first value of {type(declared).__name__} is no number and no array of numbers",
                    advice="Return one, or set fixed_shape = False in the field, which delivers values in a list",
                )

    def _good_samples(self) -> Iterator[dict[str, Any]]:
        """Yield the first samples, decoded and transformed in this process; raise an error if none is good."""
        read = lru_cache(maxsize=1)(self._read)  # neighbouring samples lie in one block
        found, failure = False, None
        for number in range(min(MAX_TRIES, len(self.sample_index))):
            try:
                sample = self._sample(number, read)
            except PenstockError as error:  # of a bad sample behind a good one; it is reported when it is delivered
                if not found and (self._on_error == "raise" or not isinstance(error, SampleError)):
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
        try:
            return self.decoder().sample(row, 0, memory)
        except PenstockError as error:
            add_location(error, number, self)
            raise

    def worker_program(self, layout: SlabLayout) -> Decoder | CollateProgram:
        """Return what workers run."""
        return self.worker_program_with(self.block_source.worker_files(), layout)

    def worker_program_with(self, files: PageCacheFiles | None, layout: SlabLayout) -> Decoder | CollateProgram:
        """Return what workers run, with the files that they read themselves."""
        seeds_globals = self.functions.in_processes
        decoder = replace(self.decoder(), layout=layout, files=files, seeds_globals=seeds_globals)
        if self.functions.collate_fn is None:
            return decoder
        return CollateProgram(DecodedSamples(decoder), self.functions.collate_fn, self._on_error)

    def decoder(self) -> Decoder:
        """Return a decoder for single samples, which need no slab."""
        key_columns = self.sample_index.key_columns
        return Decoder(
            self.fields, SlabLayout({}, 1), self.order_settings.seed, self.functions.transform, key_columns=key_columns
        )

    def identity(self) -> dict[str, str | int | bool]:
        """Return what decides the order of an epoch: where all of it is the same, a position means the same sample."""
        settings = self.order_settings
        return {
            "seed": settings.seed,
            "shuffle": settings.shuffle,
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

    def assemble(self, values: dict[str, Any], samples: Ids) -> Any:
        """Return the fields, and the samples' keys under "__key__"; or the batch that collate_fn made."""
        if self.functions.collate_fn is not None:
            return collated_batch(values, samples)
        return {**self.as_bfloat16(values), KEY: self.keys(samples)}

    def as_bfloat16(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values, with tensors of the bits of bfloat16 as bfloat16. Arrays stay uint16."""
        torch = sys.modules.get("torch")
        if torch is not None:
            for name in self._bfloat16_fields:
                value = values.get(name)
                if isinstance(value, torch.Tensor) and value.dtype == torch.uint16:
                    values[name] = value.view(torch.bfloat16)
        return values

    def __repr__(self) -> str:
        return f"{len(self.sample_index.paths)} shards"

    def close(self) -> None:
        """Close the shards."""
        self.block_source.close()


def infer_layout(
    samples: Iterator[Mapping[str, Any]], fields: Mapping[str, Field], batch_size: int, outputs: Outputs | None = None
) -> SlabLayout:
    """Infer the layout of a batch from its first samples, and from what the user says of a transform's outputs.

    The first sample decides which arrays there are. An array without a fixed shape gets 1.5 times the bytes that the
    largest of the first few samples needs; the rare one that needs more is sent over the worker's pipe.
    """
    outputs = outputs or {}
    slots: dict[str, SlotSpec] = {}
    largest: dict[str, int] = {}
    first = next(samples)
    for name in outputs.keys() - first.keys():
        raise SettingError(f"outputs name {name!r}, which the transform does not return", advice=_names_of(first))
    for name, value in first.items():
        stated = outputs.get(name)
        ragged = stated == "ragged" or (stated is None and name in fields and not has_fixed_shape(fields, name))
        if stated is not None and stated != "ragged":
            slots[name] = _stated_slot(name, *stated)
        elif ragged and isinstance(value, np.ndarray):
            largest[name] = value.nbytes
        elif not ragged and isinstance(value, np.ndarray | np.generic | bool | int | float):
            array = np.asarray(value)
            if (dtype := array.dtype.newbyteorder("=")) in TENSOR_DTYPES:
                slots[name] = SlotSpec(array.shape, dtype.str)
    for sample in islice(samples, SIZED_SAMPLES - 1) if largest else ():
        largest = {name: max(size, getattr(sample.get(name), "nbytes", 0)) for name, size in largest.items()}
    ragged_bytes = {name: max(1, size * 3 // 2) for name, size in largest.items()}
    maybe_encoded = tuple(name for name in slots if isinstance(fields.get(name), GpuDecodedImage))
    return SlabLayout(slots, batch_size, ragged_bytes, maybe_encoded)


def _stated_slot(name: str, shape: Sequence[int], dtype: str) -> SlotSpec:
    try:
        if np.dtype(dtype) in TENSOR_DTYPES:
            return SlotSpec(tuple(map(int, shape)), np.dtype(dtype).str)
    except (TypeError, ValueError):
        pass
    raise SettingError(
        f"outputs[{name!r}] = {(shape, dtype)} is not a shape and a tensor's dtype",
        advice='For example ((3, 224, 224), "float32"), or "ragged"',
    )


def _names_of(values: Mapping[str, Any]) -> str:
    return f"It returns {', '.join(map(repr, values))}"


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


def wanted_parts(fields: Mapping[str, Field]) -> list[WantedPart]:
    """Return the parts that the fields read, in the order of the fields."""
    return [WantedPart(fields[name].suffixes, fields[name].optional) for name in fields_with_parts(fields)]
