"""An index that was made where a shard was packed, and uploaded beside it: its offsets and CRCs are worth keeping.

It is bound to a file's time, which an object does not have. It is taken where it has CRCs, which prove every part when
it is read, and where the object has the size and, at places all over it, the headers that it should have.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.shards.index import Binding, ShardIndex
from penstock.shards.tarheader import BLOCK, checksums_match, names_of, one_header
from penstock.storage.remote.fetch import Version
from penstock.storage.remote.object import RemoteFile

PLACES = 16
"""Headers that are compared: the first, the last, and some between."""


def may_be_of(index: ShardIndex, now: Binding) -> bool:
    """Whether it speaks of a file that may have become this object."""
    made_elsewhere = index.binding.etag is None and index.binding != now
    plain = index.compression is None and index.crcs is not None and index.parts > 0
    return made_elsewhere and plain and index.binding.size == now.size


def adopt(path: str, index: ShardIndex, now: Binding) -> ShardIndex | None:
    """The index, bound to the object; None if the object's headers are not those that it speaks of."""
    by_offset = np.argsort(index.offsets, kind="stable")
    chosen = by_offset[np.unique(np.linspace(0, index.parts - 1, PLACES).astype(np.int64))].tolist()
    memory = memoryview(bytearray(len(chosen) * BLOCK))
    headers = [memory[number * BLOCK : (number + 1) * BLOCK] for number in range(len(chosen))]
    places = [(int(index.offsets[part]) - BLOCK, header) for part, header in zip(chosen, headers, strict=True)]
    if any(offset < 0 for offset, _ in places):
        return None
    RemoteFile(path, Version(now.size, now.etag, now.mtime_ns)).read_all(places)
    same = all(_is_of(index, part, bytes(header)) for part, header in zip(chosen, headers, strict=True))
    return replace(index, binding=now) if same else None


def _is_of(index: ShardIndex, part: int, header: bytes) -> bool:
    """Name and length; a name too long for one header is not looked for."""
    sound = bool(checksums_match(one_header(header))[0])
    length = header[124:135]
    return (
        sound
        and names_of(one_header(header))[0] == index.name(part)
        and length.isdigit()
        and int(length, 8) == index.lengths[part]
    )
