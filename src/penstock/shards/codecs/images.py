"""Decode JPEG and other images to RGB pixels, encode and shrink JPEGs, and reuse memory for pixels."""

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

# libjpeg reports only its first warning, so a harmless one may hide a serious one that came later.
_HARMLESS_LAST = "before marker 0xd9"
"""A warning about padding between the image and the end marker: nothing is read after it, so it hides no other."""
_HARMLESS_FIRST = ("unknown JFIF revision number", "bad ICC marker")
"""Warnings about metadata that is not used. The image is decoded again without it, so that later warnings show."""
_UNUSUAL_SAMPLING = "Could not determine subsampling level"
"""The error for legal sampling factors that TurboJPEG has no name for. Pillow decodes them."""

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
    """Return the RGB pixels (height, width, 3) of any JPEG that the guard accepts, greyscale and CMYK included.

    With a minimum, the image is shrunk by 2, 4 or 8 during decoding as long as neither side falls below it. An image
    that decodes only in part (cut short, damaged) is a DecodeError. The orientation in the metadata is not applied.

    Args:
        data: The bytes of the JPEG.
        min_height: Smallest height to shrink to; 0 for no limit. Without any minimum the image is not shrunk.
        min_width: Smallest width to shrink to.
        info: What `inspect_jpeg` returned, if the caller has called it already.
        scratch: Memory for the pixels, if the caller is done with them before its next image.
    """
    info = inspect_jpeg(data) if info is None else info
    return _decode_to_size(data, info, "RGB", *_scaled_size(info, min_height, min_width), scratch)


def encode_jpeg(image: NDArray[np.uint8], quality: int) -> bytes:
    """Encode (height, width, 3) RGB as a baseline JPEG with halved colour (4:2:0), or (height, width, 1) as grey."""
    if not 1 <= quality <= 100:
        raise SettingError(f"JPEG quality {quality} is not within 1..100")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3) or not image.size:
        raise SampleError(f"an array of {image.dtype} and shape {image.shape} is not an image", stage="encode")
    colours, sampling = ("RGB", "420") if image.shape[2] == 3 else ("GRAY", "Gray")
    try:
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality, colours, sampling)
    except ValueError as error:  # for example more than the 65 500 pixels per side that libjpeg can write
        raise SampleError(f"the JPEG encoder failed: {error}", stage="encode") from error
    return bytes(data)


def shrink_jpeg(data: Buffer, size: int, side: Literal["long", "short"], quality: int) -> bytes:
    """Shrink an image so that its long or short side has at most `size` pixels; return a smaller one unchanged.

    The other side is rounded half up, and is at least 1. Greyscale stays greyscale, CMYK becomes RGB.
    Orientation and colour profile (EXIF and ICC) are kept, other metadata is not.
    """
    if size < 1:
        raise SettingError(f"images cannot have {size} pixels on their {side} side")
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
    """Return the smallest decoded size that is not below the minimum, among those that are fast to decode to.

    libjpeg-turbo has vector code for 1/2, 1/4 and 1/8 only: 7/8 takes twice the time of the full size.
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
        from PIL import Image  # late, here and below: few images need it, and its import would delay every worker

        # Inverted (;I), as Adobe writes CMYK; files without Adobe's marker follow the same convention.
        size = (pixels.shape[1], pixels.shape[0])
        image = Image.frombuffer("CMYK", size, pixels, "raw", "CMYK;I", 0, 1)
        pixels = np.array(image.convert("RGB"))
    return pixels


def _decode_with_turbojpeg(
    data: Buffer, colours: str, height: int, width: int, memory: NDArray[np.uint8] | None
) -> Any:
    """Decode with every warning treated as an error, except the harmless ones above."""
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
    """Return a copy with a known JFIF revision, and with its colour profile marked as a comment."""
    copy = bytearray(data)
    for marker, start, _ in jpeg_segments(flat_view(data)):
        if marker == _JFIF[0] and copy.startswith(_JFIF[1], start):
            copy[start + len(_JFIF[1])] = 1
        elif marker == _ICC[0]:
            copy[start - 3] = _COMMENT
    return copy


def _decode_with_pillow(data: Buffer, colours: str, height: int, width: int) -> NDArray[np.uint8]:
    """Decode with Pillow, which is slower, and detects missing data but not damage.

    Image.open is not used, since its limit of pixels differs from the guard's.
    """
    from PIL import JpegImagePlugin

    try:
        with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
            image.draft(None, (width, height))
            pixels = np.array(image.convert("L" if colours == "GRAY" else "RGB"))
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises any error that its parsers run into
        raise _jpeg_failure(str(error)) from error
    return pixels


def _with_metadata(shrunk: bytes, original: bytes | memoryview, *, keep_profile: bool) -> bytes:
    """Return `shrunk` with the original's EXIF and ICC segments after its first segment, the JFIF header."""
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
        advice="The image is damaged: copy or download it again, or leave the sample out",
    )


@functools.cache
def import_opencv() -> ModuleType:
    """Import OpenCV and turn off its own threads, which would compete for the cores that decode other samples.

    This happens in the process that resizes, at its first resize, so importing Penstock does not change the user's
    setting.
    """
    import cv2

    cv2.setNumThreads(0)
    return cv2


_FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def decode_pillow_image(data: Buffer) -> NDArray[np.uint8]:
    """Return the RGB pixels of the first image of the file."""
    from PIL import Image  # late: workers that decode no such image start sooner

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large(f"{image.width}×{image.height}")
            return np.array(image.convert("RGB"))
    except (GuardError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(str(error)) from error
    except Exception as error:  # Pillow raises any error that its parsers run into
        raise DecodeError(
            f"cannot be decoded as an image: {error}",
            stage="decode",
            advice="Copy or download it again, or leave the sample out",
        ) from error


def _too_large(size: str) -> GuardError:
    return GuardError(
        f"the image is too large to decode: {size}",
        stage="guard",
        advice="Shrink or tile the image before it goes into a shard",
    )


MAX_REUSED_BYTES = 64 << 20
"""Larger memory is freed after use: few images are that large, and every worker would keep it for the whole run."""
CACHE_LINE_BYTES = 64
"""Bytes of a cache line, at which each buffer begins. numpy's own buffers begin 16 bytes into a page, and every eighth
part of a tar at the start of a page. Some processors copy at a third of the rate if the target's offset in its page is
a little larger than the source's."""


class ScratchBuffer(threading.local):
    """Memory for pixels that each thread reuses, for data that is discarded before the thread's next sample.

    Fresh memory costs a page fault every 4 KiB, which takes as long as resizing the image in it.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def array(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return an array of that shape with undefined content; the content of the last one is lost."""
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
