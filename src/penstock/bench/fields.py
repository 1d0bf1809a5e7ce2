"""The parts of the samples that a benchmark or a probe decodes: given by the user, or guessed from the first sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.data.fields import Array, Field, Image
from penstock.errors import SettingError, ShardError
from penstock.shards.codecs.arrays import decode_npz
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.open_shard import open_shard
from penstock.shards.scan import index_shard

SIZE = 224
"""Pixels per side of images for which no size is given."""


@dataclass(frozen=True, slots=True)
class BenchmarkField:
    """One entry of the batch, as plain data that both loaders understand."""

    name: str
    kind: Literal["image", "array"]
    suffix: str
    size: int = SIZE
    """Pixels per side of an image, which is stretched to size × size."""
    key: str | None = None
    """Name of an array in its NPZ; None for an NPY."""

    def declared(self) -> Field:
        """Return the field declaration for `penstock.Loader` and for the probes."""
        if self.kind == "image":
            return Image(self.suffix, size=self.size, fit="stretch")
        return Array(self.suffix, key=self.key)

    def __str__(self) -> str:
        if self.kind == "image":
            return f"{self.name}={self.suffix}:{self.size}"
        return f"{self.name}={self.suffix}" + (f":{self.key}" if self.key else "")


@dataclass(frozen=True, slots=True)
class GuessedFields:
    """The fields that the first sample of a shard suggests."""

    fields: tuple[BenchmarkField, ...]
    left_out: tuple[str, ...]
    """Suffixes of parts that are neither images nor arrays that plain numpy reads."""


def parse_fields(texts: Sequence[str], size: int = SIZE) -> tuple[BenchmarkField, ...]:
    """Parse several fields and refuse names that occur twice."""
    fields = tuple(parse_field(text, size) for text in texts)
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingError(f"two fields are named {twice!r}", advice="Give each a name of its own")
    return fields


def parse_field(text: str, size: int = SIZE) -> BenchmarkField:
    """Parse a field: `image=.jpg:1024`, `features=_features.npz:features`, `mask=.mask.npy`."""
    name, equals, rest = text.partition("=")
    suffix, _, detail = rest.partition(":")
    if not (name and equals and suffix):
        raise SettingError(f"field {text!r} is not NAME=SUFFIX[:SIZE or :KEY]", advice="For example image=.jpg:224")
    codec = codec_of(suffix)
    if codec in ("jpeg", "image"):
        if detail and not (detail.isdecimal() and int(detail) > 0):
            raise SettingError(
                f"{detail!r} in field {text!r} is no size in pixels", advice="For example image=.jpg:224"
            )
        return BenchmarkField(name, "image", suffix, size=int(detail) if detail else size)
    if codec == "npz" and not detail:
        raise SettingError(f"which array of {suffix!r} is field {name!r}?", advice=f"Write {text}:KEY")
    if codec == "npy" and detail:
        raise SettingError(f"{suffix!r} holds one array, which has no name", advice=f"Write {name}={suffix}")
    if codec in ("npz", "npy"):
        return BenchmarkField(name, "array", suffix, key=detail or None)
    raise SettingError(f"{suffix!r} is neither an image nor an NPZ or NPY", advice="Name only such parts")


def guess_fields(shard: str | os.PathLike[str], size: int = SIZE) -> GuessedFields:
    """Return a field for every image and every array of the shard's first sample."""
    index = index_shard(shard)
    if not len(index):
        raise ShardError("has no samples", shard=os.fspath(shard), stage="bench")
    fields: dict[str, BenchmarkField] = {}
    left_out: list[str] = []
    parts = sorted(index.sample(0).parts, key=lambda part: part.offset)  # compressed shards are read forward only
    with open_shard(shard) as source:
        for part in parts:
            found = _fields_of(part.suffix, source.read_at(part.offset, part.length), size)
            for field in found:
                fields[_free_name(field.name, fields)] = field
            if not found:
                left_out.append(part.suffix)
    if not fields:
        raise SettingError(f"the first sample of {os.fspath(shard)!r} has no image and no array to read")
    named = (BenchmarkField(name, f.kind, f.suffix, f.size, f.key) for name, f in fields.items())
    return GuessedFields(tuple(named), tuple(left_out))


def _fields_of(suffix: str, data: bytes, size: int) -> Sequence[BenchmarkField]:
    codec = codec_of(suffix)
    name = suffix.rpartition(".")[0].strip("._")
    if codec in ("jpeg", "image"):
        return [BenchmarkField(name or "image", "image", suffix, size=size)]
    if codec == "npy":
        return [BenchmarkField(name or "array", "array", suffix)]
    if codec == "npz":
        return [BenchmarkField(key, "array", suffix, key=key) for key in decode_npz(data)]
    return []


def _free_name(name: str, taken: dict[str, BenchmarkField]) -> str:
    """Return the name, with a number if an earlier part has it already."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
