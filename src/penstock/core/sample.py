"""What travels through the house: parts and samples, as byte ranges of a shard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a sample: `key + suffix` is its name in the shard."""

    suffix: str
    offset: int
    """First byte of the data, in the shard (in the uncompressed stream of a compressed shard)."""
    length: int
    crc32: int | None = None
    """Checksum of the data where whoever wrote the shard knew it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All parts of one key, in the order of their position in the shard."""

    key: str
    parts: tuple[Part, ...]

    def part(self, suffix: str) -> Part | None:
        """The part with that suffix."""
        return next((part for part in self.parts if part.suffix == suffix), None)
