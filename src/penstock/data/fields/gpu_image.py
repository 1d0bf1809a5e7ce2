"""A picture that may be left to the card: then its JPEG goes into the slot, and is decoded where the batch arrives."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import EncodedImage
from penstock.data.fields.image import Image
from penstock.data.fields.shared_fraction import SharedFraction
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.guards.buffer import flat_view
from penstock.shards.guards.jpeg import JpegInfo, inspect_jpeg, jpeg_segments

_ADOBE, _FRAMES = 0xEE, (0xC0, 0xC1)
_TAIL_BYTES = 64
"""Of a JPEG, by which chance decides who decodes it: coded picture, different in each."""


class GpuDecodedImage:
    """What workers do instead of decoding: the guards' walk, then a copy. What the card is not to have, they decode.

    A JPEG that takes more room than its pixels is decoded too: there the cores have so much less to put out that
    the decoder's shrinking makes them quick.
    """

    def __init__(self, image: Image, share: float = 1.0) -> None:
        self.image = image
        self.gpu_fraction = SharedFraction(share)
        """Of the pictures, for the card; turned while workers are at it."""
        self.example: bytes | None = None
        """A JPEG that was seen on this side of the pipe, to measure with."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """As declared."""
        return self.image.suffixes

    @property
    def fixed_shape(self) -> bool:
        """Always: the card needs a slot to find a JPEG in."""
        return self.image.fixed_shape

    def decode_value(self, suffix: str, data: memoryview) -> NDArray[Any]:
        """The picture in memory of its own, by the cores."""
        if codec_of(suffix) == "jpeg":
            self.example = bytes(data)
        return self.image.decode_value(suffix, data)

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> EncodedImage | None:
        """The JPEG, and that it is one; or the pixels."""
        if codec_of(suffix) != "jpeg" or data.nbytes > slot.nbytes or not self._is_for_the_card(data):
            self.image.decode_into(suffix, data, slot)
            return None
        info = inspect_jpeg(data)
        self.image.geometry(info.height, info.width)  # refuses what would be enlarged beyond any picture
        if not can_decode_on_gpu(data, info):
            self.image.decode_into(suffix, data, slot)
            return None
        slot.reshape(-1)[: data.nbytes] = np.frombuffer(data, np.uint8)
        return EncodedImage(data.nbytes, info.height, info.width)

    def _is_for_the_card(self, data: memoryview) -> bool:
        """By the picture itself: whichever worker asks, the answer is the same."""
        share = self.gpu_fraction.value
        return share >= 1 or zlib.crc32(data[-_TAIL_BYTES:]) < share * 2**32


def can_decode_on_gpu(data: memoryview, info: JpegInfo) -> bool:
    """Whether every decoder understands it alike: one scan after another, of grey or of brightness and colour.

    Progressive pictures keep a card waiting for the host; CMYK, and RGB stored as such, are taken for something else.
    """
    if info.progressive or info.components not in (1, 3):
        return False
    view = flat_view(data)
    for marker, start, end in jpeg_segments(view):
        if (
            marker == _ADOBE
            and bytes(view[start : start + 5]) == b"Adobe"
            and end - start >= 12
            and not view[start + 11]
        ):
            return info.components == 1
        if marker in _FRAMES and info.components == 3:
            identifiers = bytes((view[start + 6], view[start + 9], view[start + 12]))
            if identifiers in (b"RGB", b"rgb"):
                return False
    return True
