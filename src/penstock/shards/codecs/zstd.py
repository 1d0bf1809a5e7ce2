"""Zstandard frames, by the standard library or its backport; no other module needs to know which."""

from __future__ import annotations

import sys

from penstock.errors import DecodeError, GuardError
from penstock.shards.guards.buffer import Buffer, flat_view

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZstdError = zstd.ZstdError
ZstdFile = zstd.ZstdFile
_LONGEST_FRAME_HEADER = 18
_ADVICE = "Copy or download it again, or leave the sample out"


def compress(data: Buffer) -> bytes:
    """Return one frame that states the length of its content and carries a checksum."""
    return bytes(zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: True}))


def decompress(data: Buffer, max_length: int) -> bytes:
    """Return the content of one frame, which must state that it has at most `max_length` bytes."""
    length = _content_length(data)
    if length > max_length:
        raise GuardError(
            f"the zstd frame inflates to {length} bytes; {max_length} is the limit",
            stage="guard",
            advice="Split the array over several samples or parts",
        )
    return _decompress_frame(data, length)


def decompress_prefix(data: Buffer, length: int) -> tuple[bytes, int]:
    """Return up to `length` bytes from the beginning of one frame's content, and the length of all of it."""
    total = _content_length(data)
    try:
        return bytes(zstd.ZstdDecompressor().decompress(data, max_length=length)), total
    except zstd.ZstdError as error:
        raise DecodeError(f"the zstd frame is damaged: {error}", stage="decode", advice=_ADVICE) from error


def _content_length(data: Buffer) -> int:
    try:
        length: int | None = zstd.get_frame_info(flat_view(data)[:_LONGEST_FRAME_HEADER]).decompressed_size
    except zstd.ZstdError as error:
        raise DecodeError(f"not a zstd frame: {error}", stage="decode", advice=_ADVICE) from error
    if length is None:
        raise GuardError(
            "the zstd frame does not state the length of its content",
            stage="guard",
            advice="Compress it in one piece (`zstd FILE`, not through a pipe)",
        )
    return length


def _decompress_frame(data: Buffer, length: int) -> bytes:
    decoder = zstd.ZstdDecompressor()
    try:
        content = decoder.decompress(data, max_length=length + 1)  # one more byte, so that the checksum is read too
    except zstd.ZstdError as error:
        raise DecodeError(f"the zstd frame is damaged: {error}", stage="decode", advice=_ADVICE) from error
    if not decoder.eof or len(content) != length:
        raise DecodeError("the zstd frame is cut short", stage="decode", advice=_ADVICE)
    if decoder.unused_data:
        raise DecodeError("something follows the zstd frame", stage="decode", advice=_ADVICE)
    return bytes(content)
