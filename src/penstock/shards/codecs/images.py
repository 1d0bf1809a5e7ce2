"""JPEG to pixels and back, behind the guard; and the shrinking that packing does."""

from __future__ import annotations

import functools
import io
import threading
from math import prod
from types import ModuleType
from typing import Any, Literal

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from penstock.errors import DecodeError, GuardError, SampleError, SettingError
from penstock.shards.guards.buffer import Buffer, flat_view
from penstock.shards.guards.jpeg import MAX_PIXELS, JpegInfo, inspect_jpeg, jpeg_segments

# libjpeg tells only its first warning, so a harmless one may hide a serious one that came later.
_HARMLESS_LAST = "before marker 0xd9"
"""Padding between the picture and the end marker: nothing is read after it, so nothing hides behind it."""
_HARMLESS_FIRST = ("unknown JFIF revision number", "bad ICC marker")
"""About metadata we do not use; decoded again without that metadata, so that later warnings show."""
_UNUSUAL_SAMPLING = "Could not determine subsampling level"
"""Legal sampling factors that TurboJPEG has no name for. Pillow decodes them."""

_JFIF, _EXIF, _ICC = (0xE0, b"JFIF\0"), (0xE1, b"Exif\0\0"), (0xE2, b"ICC_PROFILE\0")
_COMMENT = 0xFE


def decode_jpeg(
    data: Buffer,
    *,
    min_height: int = 0,
    min_width: int = 0,
    info: JpegInfo | None = None,
    scratch: ScratchBuffer | None = None,
) -> NDArray[np.uint8]:
    """RGB pixels (height, width, 3) of any JPEG the guard lets through, greyscale and CMYK too.

    With a minimum, the decoder shrinks by 2, 4 or 8 on the way as long as neither side falls below it.
    A picture that decodes only with guesswork (cut short, damaged) is a DecodeError. The orientation in
    the metadata is not applied. Who has been past the guard already gives its `info`; who is done with the pixels
    before the next picture gives the memory for them.
    """
    info = inspect_jpeg(data) if info is None else info
    return _decode_to_size(data, info, "RGB", *_scaled_size(info, min_height, min_width), scratch)


def encode_jpeg(image: NDArray[np.uint8], quality: int) -> bytes:
    """A baseline JPEG of (height, width, 3) RGB with halved colour (4:2:0), or of (height, width, 1) grey."""
    if not 1 <= quality <= 100:
        raise SettingError(f"JPEG quality {quality} is not within 1..100")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3) or not image.size:
        raise SampleError(f"an array of {image.dtype} and shape {image.shape} is no picture", stage="encode")
    colours, sampling = ("RGB", "420") if image.shape[2] == 3 else ("GRAY", "Gray")
    try:
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality, colours, sampling)
    except ValueError as error:  # longer than the 65 500 pixels that libjpeg can write
        raise SampleError(f"the JPEG encoder gave up: {error}", stage="encode") from error
    return bytes(data)


def shrink_jpeg(data: Buffer, size: int, side: Literal["long", "short"], quality: int) -> bytes:
    """The picture with its long or short side at most `size` pixels; the same bytes if it is so already.

    The other side is rounded half up, and is at least 1. Greyscale stays greyscale, CMYK becomes RGB.
    Orientation and colour profile (EXIF and ICC) are carried over, other metadata is not.
    """
    if size < 1:
        raise SettingError(f"pictures cannot be {size} pixels on their {side} side")
    info = inspect_jpeg(data)
    reference = (max if side == "long" else min)(info.height, info.width)
    if reference <= size:
        return bytes(data)
    height, width = (max(1, (2 * n * size + reference) // (2 * reference)) for n in (info.height, info.width))
    colours = "GRAY" if info.components == 1 else "RGB"
    pixels = _decode_to_size(data, info, colours, *_scaled_size(info, height, width))
    if pixels.shape[:2] != (height, width):
        cv2 = import_opencv()
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    shrunk = encode_jpeg(pixels.reshape(height, width, -1), quality)
    return _with_metadata(shrunk, flat_view(data), keep_profile=not info.cmyk)


def _scaled_size(info: JpegInfo, min_height: int, min_width: int) -> tuple[int, int]:
    """The smallest decoded size not below the minimum, of those that are fast.

    libjpeg-turbo has vector code for 1/2, 1/4 and 1/8 only: 7/8 selections twice the time of the full picture.
    """
    if min_height > 0 or min_width > 0:
        for divisor in (8, 4, 2):
            height, width = -(-info.height // divisor), -(-info.width // divisor)
            if height >= min_height and width >= min_width:
                return height, width
    return info.height, info.width


def _decode_to_size(
    data: Buffer, info: JpegInfo, colours: str, height: int, width: int, scratch: ScratchBuffer | None = None
) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8]
    memory = scratch.array((height * width * 3,)) if scratch is not None and not info.cmyk else None
    try:
        pixels = _decode_with_turbojpeg(data, "CMYK" if info.cmyk else colours, height, width, memory)
    except DecodeError as error:
        if _UNUSUAL_SAMPLING not in error.reason:
            raise
        return _decode_with_pillow(data, colours, height, width)
    if info.cmyk:
        from PIL import Image  # late, here and below: few pictures need it, and every worker would wait for it

        # Inverted (;I), as Adobe writes CMYK; files without its mark follow the same custom.
        size = (pixels.shape[1], pixels.shape[0])
        picture = Image.frombuffer("CMYK", size, pixels, "raw", "CMYK;I", 0, 1)
        pixels = np.array(picture.convert("RGB"))
    return pixels


def _decode_with_turbojpeg(
    data: Buffer, colours: str, height: int, width: int, memory: NDArray[np.uint8] | None
) -> Any:
    """Decode with every warning an error, but for the harmless ones above."""
    strict, calmed = True, False
    while True:
        try:
            return simplejpeg.decode_jpeg(
                data, colours, min_height=height, min_width=width, strict=strict, buffer=memory
            )
        except ValueError as error:
            message = str(error)
        if strict and _HARMLESS_LAST in message:
            strict = False
        elif not calmed and any(harmless in message for harmless in _HARMLESS_FIRST):
            data, calmed = _without_odd_metadata(data), True
        else:
            raise _jpeg_failure(message)


def _without_odd_metadata(data: Buffer) -> bytearray:
    """A copy with a known JFIF revision, and its colour profile disguised as a comment."""
    copy = bytearray(data)
    for marker, start, _ in jpeg_segments(flat_view(data)):
        if marker == _JFIF[0] and copy.startswith(_JFIF[1], start):
            copy[start + len(_JFIF[1])] = 1
        elif marker == _ICC[0]:
            copy[start - 3] = _COMMENT
    return copy


def _decode_with_pillow(data: Buffer, colours: str, height: int, width: int) -> NDArray[np.uint8]:
    """Slower, and it notices missing data but not damage. Not Image.open, whose pixel limit is not ours."""
    from PIL import JpegImagePlugin

    try:
        with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as picture:
            picture.draft(None, (width, height))
            pixels = np.array(picture.convert("L" if colours == "GRAY" else "RGB"))
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises whatever its parsers stumble over
        raise _jpeg_failure(str(error)) from error
    return pixels


def _with_metadata(shrunk: bytes, original: bytes | memoryview, *, keep_profile: bool) -> bytes:
    """`shrunk` with the original's EXIF and ICC segments after its first one, the JFIF header."""
    wanted = (_EXIF, _ICC) if keep_profile else (_EXIF,)
    kept = [
        bytes(original[start - 4 : end])
        for marker, start, end in jpeg_segments(original)
        if any(marker == kind and original[start : start + len(name)] == name for kind, name in wanted)
    ]
    if not kept:
        return shrunk
    _, _, first_end = jpeg_segments(shrunk)[0]
    return b"".join((shrunk[:first_end], *kept, shrunk[first_end:]))


def _jpeg_failure(message: str) -> DecodeError:
    return DecodeError(
        f"the JPEG decoder reports: {message}",
        stage="decode",
        advice="The picture is damaged: copy or download it again, or leave the sample out",
    )


@functools.cache
def import_opencv() -> ModuleType:
    """OpenCV without threads of its own, which would fight over the cores that decode other samples.

    Set in the process that resizes, when it first does: importing us leaves the user's setting alone.
    """
    import cv2

    cv2.setNumThreads(0)
    return cv2


_FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def decode_pillow_image(data: Buffer) -> NDArray[np.uint8]:
    """RGB pixels of the first picture of the file, as a loader would take it."""
    from PIL import Image  # late: workers that see no such picture start sooner

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise _too_large(f"{picture.width}×{picture.height}")
            return np.array(picture.convert("RGB"))
    except (GuardError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(str(error)) from error
    except Exception as error:  # Pillow raises whatever its parsers stumble over
        raise DecodeError(
            f"does not read as a picture: {error}",
            stage="decode",
            advice="Copy or download it again, or leave the sample out",
        ) from error


def _too_large(size: str) -> GuardError:
    return GuardError(
        f"the picture is too large to decode: {size}",
        stage="guard",
        advice="Shrink or tile the picture before it goes into a shard",
    )


MAX_REUSED_BYTES = 64 << 20
"""More is given back after use: few pictures are that large, and every worker would keep it for ever."""
CACHE_LINE_BYTES = 64
"""Bytes of a cache line, where each piece begins. numpy's begin 16 bytes into a page, and some processors copy to just
behind where bytes lie in a page of their own, as every eighth part of a tar does, at a third of the rate."""


class ScratchBuffer(threading.local):
    """One piece for each thread. Fresh memory costs a page fault every 4 KiB, as much as resizing the picture in it."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Of that shape, holding anything; what was in it before is lost."""
        size = prod(shape)
        memory = self._memory
        if size > len(memory):
            memory = _allocate_aligned(size)
            if size <= MAX_REUSED_BYTES:
                self._memory = memory
        return memory[:size].reshape(shape)


def _allocate_aligned(size: int) -> NDArray[np.uint8]:
    memory = np.empty(size + CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE_BYTES
    return memory[start : start + size]
