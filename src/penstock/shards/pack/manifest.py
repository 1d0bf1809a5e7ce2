"""The manifest of a packed dataset: a JSON file with the counts, the fields, the shards and a fingerprint.

Each task reports the facts of its shard; the manifest is their sum. Field names of the structs are keys of the JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.core.write_file import replace_file
from penstock.shards.codecs.arrays import inspect_npy_zst
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.codecs.images import is_jpeg
from penstock.shards.guards.jpeg import inspect_jpeg
from penstock.shards.guards.npy import inspect_npy
from penstock.shards.index import ShardIndex

VERSION = 1
"""Version of the manifest's format."""


class FieldFact(msgspec.Struct):
    """The facts about the parts with one suffix, over all samples: how they are stored, how many, how large."""

    codec: str
    parts: int
    size_bytes: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    """None if the part is not an array or image, or if the samples differ; the same holds for `dtype`."""

    def add(self, suffix: str, data: bytes) -> None:
        """Count one more part."""
        self.merge(field_fact(suffix, data))

    def merge(self, other: FieldFact) -> None:
        """Add the facts of another set of parts; a dtype or shape that differs becomes None."""
        self.parts += other.parts
        self.size_bytes += other.size_bytes
        self.dtype = self.dtype if self.dtype == other.dtype else None
        self.shape = self.shape if self.shape == other.shape else None


class PackedShard(msgspec.Struct, frozen=True):
    """The report of one finished task, stored as JSON beside the shards so that a later run can skip the task."""

    name: str
    fingerprint: str
    """Fingerprint of the task: a digest of the options and the samples."""
    samples: int
    parts: int
    size_bytes: int
    content: str
    """Digest of the keys and the CRC32 of every part."""
    fields: dict[str, FieldFact]
    """The facts about the parts, by suffix."""
    skipped: list[dict[str, str | int]]
    """The bad samples that were left out: shard, member, offset, stage and reason of each."""

    @classmethod
    def of(
        cls,
        name: str,
        fingerprint: str,
        index: ShardIndex,
        fields: dict[str, FieldFact],
        skipped: list[dict[str, str | int]],
    ) -> PackedShard:
        """Return the report of a shard, from its index."""
        digest = hashlib.sha256("\n".join(index.keys).encode())
        digest.update(b"" if index.crcs is None else index.crcs.astype("<u4").tobytes())
        content = digest.hexdigest()[:32]
        return cls(name, fingerprint, len(index), index.part_count, index.binding.size, content, fields, skipped)


class Manifest(msgspec.Struct, frozen=True):
    """All shards of a pack, with the facts that a reader needs before it opens one of them."""

    version: int
    fingerprint: str
    """Digest of the content of all shards."""
    samples: int
    size_bytes: int
    skipped: int
    """Number of samples that were left out because they are bad or incomplete."""
    fields: dict[str, FieldFact]
    shards: list[dict[str, str | int]]
    options: dict[str, object]


def field_fact(suffix: str, data: bytes) -> FieldFact:
    """Return the facts of a single part."""
    codec = codec_of(suffix)
    if codec in ("npy", "npy.zst"):
        header = inspect_npy(data) if codec == "npy" else inspect_npy_zst(data)
        return FieldFact(codec, 1, len(data), header.dtype.str, header.shape)
    if codec in ("jpeg", "image") and is_jpeg(data):
        info = inspect_jpeg(data)
        return FieldFact("jpeg", 1, len(data), "|u1", (info.height, info.width, info.components))
    return FieldFact("image" if codec == "jpeg" else codec, 1, len(data))


def make_manifest(shards: Sequence[PackedShard], left_out: int, options: dict[str, object]) -> Manifest:
    """Sum up the reports of all shards; `left_out` is the number of incomplete samples, which were in no task."""
    fields: dict[str, FieldFact] = {}
    for shard in shards:
        for suffix, fact in shard.fields.items():
            if suffix in fields:
                fields[suffix].merge(fact)
            else:
                fields[suffix] = msgspec.structs.replace(fact)
    return Manifest(
        version=VERSION,
        fingerprint=hashlib.sha256("".join(shard.content for shard in shards).encode()).hexdigest()[:32],
        samples=sum(shard.samples for shard in shards),
        size_bytes=sum(shard.size_bytes for shard in shards),
        skipped=left_out + sum(len(shard.skipped) for shard in shards),
        fields=fields,
        shards=[{"name": shard.name, "samples": shard.samples, "size_bytes": shard.size_bytes} for shard in shards],
        options=options,
    )


def write_manifest(manifest: Manifest, folder: Path) -> Path:
    """Write `manifest.json` atomically and return its path."""
    path = folder / "manifest.json"
    replace_file(path, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return path
