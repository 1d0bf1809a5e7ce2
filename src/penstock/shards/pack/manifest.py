"""What a packed dataset says about itself: counts, fields, fingerprint. Plain JSON."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.shards.codecs.arrays import inspect_npy_zst
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.guards.jpeg import inspect_jpeg
from penstock.shards.guards.npy import inspect_npy
from penstock.shards.index import ShardIndex

VERSION = 1


class FieldFact(msgspec.Struct):
    """What is known of one kind of part over all samples."""

    codec: str
    parts: int
    size_bytes: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    """None where it is not an array, or where samples differ."""

    def add(self, suffix: str, data: bytes) -> None:
        """Count one more part; what varies is no longer stated."""
        other = field_fact(suffix, data)
        self.merge(other)

    def merge(self, other: FieldFact) -> None:
        """Join the facts of two sets of parts."""
        self.parts += other.parts
        self.size_bytes += other.size_bytes
        self.dtype = self.dtype if self.dtype == other.dtype else None
        self.shape = self.shape if self.shape == other.shape else None


class PackedShard(msgspec.Struct, frozen=True):
    """The report of one finished task."""

    name: str
    fingerprint: str
    samples: int
    parts: int
    size_bytes: int
    content: str
    """Digest of the keys and the CRC32 of every part."""
    fields: dict[str, FieldFact]
    skipped: list[dict[str, str | int]]

    @classmethod
    def of(
        cls,
        name: str,
        fingerprint: str,
        index: ShardIndex,
        fields: dict[str, FieldFact],
        skipped: list[dict[str, str | int]],
    ) -> PackedShard:
        """The report of a shard whose index has just been made."""
        digest = hashlib.sha256("\n".join(index.keys).encode())
        digest.update(b"" if index.crcs is None else index.crcs.astype("<u4").tobytes())
        content = digest.hexdigest()[:32]
        return cls(name, fingerprint, len(index), index.part_count, index.binding.size, content, fields, skipped)


class Manifest(msgspec.Struct, frozen=True):
    """All shards of a pack, and what a reader needs to know before opening any."""

    version: int
    fingerprint: str
    samples: int
    size_bytes: int
    skipped: int
    fields: dict[str, FieldFact]
    shards: list[dict[str, str | int]]
    options: dict[str, object]


def field_fact(suffix: str, data: bytes) -> FieldFact:
    """The facts of a single part."""
    codec = codec_of(suffix)
    if codec in ("npy", "npy.zst"):
        header = inspect_npy(data) if codec == "npy" else inspect_npy_zst(data)
        return FieldFact(codec, 1, len(data), header.dtype.str, header.shape)
    if codec == "jpeg":
        info = inspect_jpeg(data)
        return FieldFact(codec, 1, len(data), "|u1", (info.height, info.width, info.components))
    return FieldFact(codec, 1, len(data))


def make_manifest(shards: Sequence[PackedShard], left_out: int, options: dict[str, object]) -> Manifest:
    """Sum up the reports; `left_out` samples were not whole and so never came to a task."""
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
    """Write `manifest.json`, atomically."""
    path = folder / "manifest.json"
    replace_file(path, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return path


def replace_file(path: Path, data: bytes) -> None:
    """Write under another name, then rename; what could not be written leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{platform.node()}-{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
