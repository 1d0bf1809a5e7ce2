"""Parts and samples, as byte ranges of a shard."""

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
    """Checksum of the data, if the writer of the shard recorded it."""
    unreadable: str | None = None
    """Why the data cannot be read, such as "is a GNU sparse file"; the length is then 0."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All parts of one key, in the order of their position in the shard."""

    key: str
    parts: tuple[Part, ...]

    def part(self, suffix: str) -> Part | None:
        """Return the part with that suffix, if there is one."""
        return next((part for part in self.parts if part.suffix == suffix), None)
