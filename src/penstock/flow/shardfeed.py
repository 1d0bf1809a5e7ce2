"""Everything the loader needs to know of a set of shards: what a sample is, what an epoch is, what a key is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.layout import SlabLayout, Slot
from penstock.errors import PenstockError, SampleError, SettingError, ShardError
from penstock.flow.decode import Decoder, Transform
from penstock.flow.fields.base import Field
from penstock.flow.order import epoch_order
from penstock.flow.read import ShardSupply, make_dataset
from penstock.shards.health import whole_samples
from penstock.shards.index import ShardIndex
from penstock.shards.scan import index_all

Ids = NDArray[np.int64]

BLOCK_BYTES = 2 << 20
"""Long enough that a disk streams and a request pays, short enough that 64 of them fit in memory."""
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


class ShardFeed:
    """Indexed shards and declared fields."""

    def __init__(
        self,
        shards: Sequence[str],
        fields: Mapping[str, Field],
        order: OrderSettings,
        transform: Transform | None,
        on_bad: Literal["raise", "skip"],
    ) -> None:
        if not fields:
            raise SettingError("a loader needs fields", advice='For example fields={"image": Image(".jpg", size=224)}')
        self.fields = dict(fields)
        self.order_settings = order
        self.transform = transform
        self._on_bad = on_bad
        indexes = _indexes(shards)
        wanted = [field.suffixes for field in self.fields.values()]
        whole: list[Ids] = []
        self.problems: list[tuple[str, Any]] = []
        for number, (path, index) in enumerate(zip(shards, indexes, strict=True)):
            indexes[number] = index = index.split_by(_stated(index, wanted))
            required = [_present(index, alternatives) for alternatives in wanted]
            numbers, problems = whole_samples(index, path, required, on_bad)
            whole.append(numbers)
            self.problems += [(path, problem) for problem in problems]
        self.indexed = sum(map(len, indexes))
        self.dataset = make_dataset(shards, indexes, whole, wanted)
        if not len(self.dataset):
            raise ShardError("the shards have no whole sample with all these fields", stage="pair")
        self.supply = ShardSupply(self.dataset, order.block_bytes)

    def __len__(self) -> int:
        total = len(self.dataset)
        most = self.order_settings.max_samples
        return total if most is None else min(total, most)

    def order(self, epoch: int) -> Ids:
        """The samples of an epoch, in order, over all ranks."""
        settings = self.order_settings
        order = epoch_order(
            self.supply.blocks, seed=settings.seed, epoch=epoch, lanes=settings.lanes, shuffle=settings.shuffle
        )
        return order[: len(self)]

    def uses(self, samples: Ids) -> Ids:
        """How many of these samples each block has."""
        return np.bincount(self.supply.blocks_of(samples), minlength=len(self.supply.blocks))

    def keys(self, samples: Ids) -> list[str]:
        """Their keys."""
        return [self.dataset.key(sample) for sample in samples.tolist()]

    def where(self, sample: int) -> tuple[str, str, int]:
        """Shard, key and offset of a sample."""
        return self.dataset.where(sample)

    def first_sample(self) -> dict[str, Any]:
        """The first good sample, decoded and transformed here and now: what all others must look like."""
        failure: PenstockError | None = None
        for number in range(min(TRIES, len(self.dataset)) if self._on_bad == "skip" else 1):
            try:
                return self._sample(number)
            except SampleError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _sample(self, number: int) -> dict[str, Any]:
        """One sample, on its own."""
        sample, zero = np.array([number], np.int64), np.zeros(1, np.int64)
        block = int(self.supply.blocks_of(sample)[0])
        memory = memoryview(bytearray(self.supply.block_bytes(block)))
        self.supply.fill(block, memory)
        row = self.supply.rows(sample, zero, zero)[0].tolist()
        decoder = Decoder(self.fields, SlabLayout({}, 1), self.order_settings.seed, self.transform)
        shard, key, offset = self.where(number)
        try:
            values = decoder.sample(row, memory)
            return values if self.transform is None else self.transform(values, decoder.rng(0, number))
        except PenstockError as error:
            raise error.at(shard=shard, member=key, offset=offset) from None
        except Exception as error:  # the transform's own
            reason = f"{type(error).__name__}: {error}"
            raise SampleError(reason, shard=shard, member=key, offset=offset, stage="transform") from error

    def layout(self, batch_size: int) -> SlabLayout:
        """The slots of a batch, as the first sample has them."""
        slots = {}
        for name, value in self.first_sample().items():
            field = self.fields.get(name)
            fixed = field.fixed if field is not None else isinstance(value, np.ndarray | np.generic)
            if fixed and isinstance(value, np.ndarray | np.generic):
                slots[name] = Slot(value.shape, value.dtype.str)
        return SlabLayout(slots, batch_size)

    def work(self, layout: SlabLayout) -> Decoder:
        """What workers run."""
        return Decoder(self.fields, layout, self.order_settings.seed, self.transform)

    def identity(self) -> dict[str, str | int | bool]:
        """What decides the order of an epoch: where all of it is the same, a position means the same sample."""
        settings = self.order_settings
        return {
            "seed": settings.seed,
            "shuffle": settings.shuffle,
            "lanes": settings.lanes,
            "block_bytes": settings.block_bytes,
            "samples": len(self),
            "fingerprint": self._fingerprint(),
        }

    def _fingerprint(self) -> str:
        """Of the samples and the blocks they lie in; not of paths or times, so that shards may move."""
        digest = hashlib.sha256(self.supply.blocks.first_samples.astype("<i8").tobytes())
        for index, numbers in zip(self.dataset.indexes, self.dataset.numbers, strict=True):
            digest.update(f"{index.binding.size} {len(numbers)}\n".encode())
            for column in (numbers, index.sample_ids, index.lengths):
                digest.update(column.astype("<i8").tobytes())
            digest.update("\n".join(index.keys).encode())
        return digest.hexdigest()[:32]

    def close(self) -> None:
        """Close the shards."""
        self.supply.close()


def _indexes(shards: Sequence[str]) -> list[ShardIndex]:
    found: dict[str, ShardIndex] = {}
    for scanned in index_all(shards):
        if scanned.index is None:
            raise scanned.error or ShardError("cannot be indexed", shard=scanned.shard)
        found[scanned.shard] = scanned.index
    return [found[shard] for shard in shards]


def _stated(index: ShardIndex, wanted: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Suffixes to split names by, if those that were inferred do not offer what is wanted."""
    if all(any(suffix in index.suffixes for suffix in alternatives) for alternatives in wanted):
        return ()
    return tuple(suffix for alternatives in wanted for suffix in alternatives)


def _present(index: ShardIndex, alternatives: tuple[str, ...]) -> str:
    """The alternative this shard uses, for the pairing rule; the first one if it has none."""
    return next((suffix for suffix in alternatives if suffix in index.suffixes), alternatives[0])
