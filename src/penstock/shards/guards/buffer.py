"""What the guards and codecs read from."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in memory. The arena hands out memoryviews, so nothing here may assume methods of bytes."""


def flat_view(data: Buffer) -> bytes | memoryview:
    """The same memory as plain single bytes, without a copy: indexing gives integers whatever came in."""
    return data if isinstance(data, bytes) else memoryview(data).cast("B")
