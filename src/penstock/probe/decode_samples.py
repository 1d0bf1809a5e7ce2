"""What the decode probe decodes: samples of the user's shards in memory, or made-up ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Part
from penstock.core.slab_layout import SlotSpec
from penstock.data.fields import Field, Image
from penstock.errors import PenstockError, SampleError, ShardError
from penstock.shards.index import ShardIndex
from penstock.shards.open_shard import open_shard
from penstock.shards.scan import index_shard

Sample = Mapping[str, bytes]
"""Parts by suffix."""

SAMPLES_MAX = 32
BYTES_MAX = 16 << 20
"""Each worker has a copy; the first sample is taken whatever its size, up to ONE_BYTES_MAX."""
ONE_BYTES_MAX = 256 << 20
MADE_UP = 16
MADE_UP_SIZE = 224


@dataclass(frozen=True, slots=True)
class DecodeMaterial:
    """Samples that are known to decode, what to make of them, and what comes out."""

    samples: tuple[Sample, ...]
    fields: Mapping[str, Field]
    slots: Mapping[str, SlotSpec]
    """Shape and type of the arrays of one sample; every sample has the same where the field is fixed."""
    source: str
    """In words."""
    bad: int = 0
    """Samples that were left out because they did not decode."""

    @property
    def sample_bytes(self) -> float:
        """Encoded; the mean."""
        return sum(len(data) for sample in self.samples for data in sample.values()) / len(self.samples)

    @property
    def decoded_bytes(self) -> int:
        """Of one sample in a batch."""
        return sum(slot.size for slot in self.slots.values())


def from_shard(shard: str | os.PathLike[str], fields: Mapping[str, Field]) -> DecodeMaterial:
    """The first samples of a shard, as many as the bounds allow."""
    index = index_shard(shard)
    wanted = {suffix for field in fields.values() for suffix in field.suffixes}
    chosen = dict(_chosen(index, wanted))
    if not chosen:
        reason = f"its first sample is larger than {ONE_BYTES_MAX >> 20} MiB" if len(index) else "has no samples"
        raise ShardError(reason, shard=os.fspath(shard), stage="probe")
    samples: dict[int, dict[str, bytes]] = {number: {} for number in chosen}
    parts = [(number, part) for number, found in chosen.items() for part in found]
    with open_shard(shard) as source:
        for number, part in sorted(parts, key=lambda each: each[1].offset):  # compressed shards go forward only
            samples[number][part.suffix] = source.read_at(part.offset, part.length)
    return _vetted(list(samples.values()), fields, os.path.basename(os.fspath(shard)))


def made_up(size: int = MADE_UP_SIZE, count: int = MADE_UP) -> DecodeMaterial:
    """ImageNet-like pictures, cut to a square: for when there is nothing else to decode."""
    from penstock.testing import IMAGENET, sample_parts

    samples = [{".jpg": sample_parts(IMAGENET, number)[".jpg"]} for number in range(count)]
    return _vetted(samples, {"image": Image(".jpg", size=size, fit="stretch")}, "made-up ImageNet-like pictures")


def part_of(field: Field, sample: Sample) -> tuple[str, bytes]:
    """The part that a field is read from."""
    for suffix in field.suffixes:
        if suffix in sample:
            return suffix, sample[suffix]
    raise SampleError(f"has no part {' or '.join(field.suffixes)}", stage="decode")


def _chosen(index: ShardIndex, wanted: set[str]) -> Iterator[tuple[int, list[Part]]]:
    """Numbers and parts of samples, up to the bounds."""
    total = 0
    for number in range(min(len(index), SAMPLES_MAX)):
        parts = [part for part in index.sample(number).parts if part.suffix in wanted]
        total += sum(part.length for part in parts)
        if total > (BYTES_MAX if number else ONE_BYTES_MAX):
            return
        yield number, parts


def _vetted(samples: list[dict[str, bytes]], fields: Mapping[str, Field], source: str) -> DecodeMaterial:
    """Decode each once: what fails, or has another shape than the first, is left out and counted."""
    good: list[Sample] = []
    slots: dict[str, SlotSpec] = {}
    first_error: PenstockError | None = None
    for sample in samples:
        try:
            found = _slots(_decoded(sample, fields))
            if good and any(field.fixed_shape and found.get(name) != slots.get(name) for name, field in fields.items()):
                raise SampleError("has another shape than the first", stage="decode")
        except Exception as error:  # a field of the user's own may raise anything
            first_error = first_error or _ours(error)
            continue
        slots = slots or found
        good.append(sample)
    if not good:
        raise first_error or SampleError("there is no sample to decode", stage="probe")
    return DecodeMaterial(tuple(good), dict(fields), slots, source, len(samples) - len(good))


def _ours(error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return SampleError(f"{type(error).__name__}: {error}", stage="decode")


def _decoded(sample: Sample, fields: Mapping[str, Field]) -> dict[str, Any]:
    values = {}
    for name, field in fields.items():
        suffix, data = part_of(field, sample)
        values[name] = field.decode_value(suffix, memoryview(data))
    return values


def _slots(values: Mapping[str, Any]) -> dict[str, SlotSpec]:
    arrays: dict[str, NDArray[Any]] = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return {name: SlotSpec(array.shape, array.dtype.str) for name, array in arrays.items()}
