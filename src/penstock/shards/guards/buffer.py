"""The kinds of memory that guards and codecs read from."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in memory. The arena provides memoryviews, so guards and codecs cannot rely on methods of bytes."""


def flat_view(data: Buffer) -> bytes | memoryview:
    """Return the same memory as single bytes, without a copy, so that indexing gives integers for every buffer."""
    return data if isinstance(data, bytes) else memoryview(data).cast("B")
