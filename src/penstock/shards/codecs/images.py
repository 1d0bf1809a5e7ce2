"""Decode JPEG and other images to pixels, encode and shrink JPEGs, and reuse memory for pixels."""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from types import ModuleType
from typing import Any, Literal

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from penstock.errors import DecodeError, GuardError, SampleError, SettingError
from penstock.shards.codecs.turbojpeg import decode_with_turbojpeg, jpeg_failure
from penstock.shards.guards.buffer import Buffer, flat_view
from penstock.shards.guards.jpeg import MAX_PIXELS, JpegInfo, inspect_jpeg, jpeg_segments, without_stray_bytes

_UNUSUAL_SAMPLING = "Could not determine subsampling level"
"""The error for legal sampling factors that TurboJPEG has no name for. Pillow decodes them."""

_EXIF, _ICC = (0xE1, b"Exif\0\0"), (0xE2, b"ICC_PROFILE\0")
_FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""The formats that are decoded besides JPEG."""
_TIFF_BITS_PER_SAMPLE = 258
_OPAQUE = 255
"""Value of the alpha channel where nothing shines through."""
_ORIENTATION_TAG = 0x0112
_FLIPS = {1: (1, 1), 2: (1, -1), 3: (-1, -1), 4: (-1, 1), 5: (1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}
"""Steps along rows and columns after the sides were exchanged, by EXIF orientation."""


ImageMode = Literal["RGB", "L", "I;16"]
"""Pillow's names for colour, greyscale and 16-bit greyscale."""
Pixels = NDArray[Any]
"""(height, width, channels); uint8, or uint16 for 16-bit greyscale."""
TURNED_ORIENTATIONS = (5, 6, 7, 8)
"""EXIF orientations that exchange height and width."""


def is_jpeg(data: Buffer) -> bool:
    """Return whether the bytes are a JPEG, whatever their file is called."""
    return flat_view(data)[:2] == b"\xff\xd8"


def decode_jpeg(
    data: Buffer,
    mode: Literal["RGB", "L"] = "RGB",
    *,
    divisor: int = 1,
    coarse_chroma: bool = False,
    info: JpegInfo | None = None,
    scratch: ScratchBuffer | None = None,
) -> NDArray[np.uint8]:
    """Return the pixels (height, width, 3 or 1) of any JPEG that the guard accepts, greyscale and CMYK included.

    An image that decodes only in part (cut short, damaged) is a DecodeError. The orientation in the metadata is not
    applied.

    Args:
        data: The bytes of the JPEG.
        mode: RGB or greyscale.
        divisor: 2, 4 or 8 shrinks the image while it is decoded; its sides are rounded up.
        coarse_chroma: Whether colours that are stored at half the size are enlarged without interpolation, which saves
            a tenth of the time and is not seen in an image that is then reduced.
        info: What `inspect_jpeg` returned, if the caller has called it already.
        scratch: Memory for the pixels, if the caller is done with them before its next image.
    """
    info = inspect_jpeg(data) if info is None else info
    colours = "RGB" if mode == "RGB" else "GRAY"
    pixels = _decode_shrunk(data, info, colours, divisor, coarse_chroma, scratch)
    return pixels.reshape(*pixels.shape[:2], -1)


def exif_orientation(data: Buffer) -> int:
    """Return the orientation of a JPEG by its EXIF data, 1 to 8; 1 is upright, and is returned if there is none."""
    view = flat_view(data)
    for marker, start, end in jpeg_segments(view):
        if marker == _EXIF[0] and bytes(view[start : start + len(_EXIF[1])]) == _EXIF[1]:
            return _orientation(functools.partial(_parse_exif, bytes(view[start:end])))
    return 1


def _parse_exif(content: bytes) -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif.load(content)
    return exif


def _orientation(load_exif: Callable[[], Any]) -> int:
    try:
        orientation = load_exif().get(_ORIENTATION_TAG, 1)
    except Exception:  # Pillow raises any error that its parser runs into: no usable orientation
        return 1
    return orientation if orientation in _FLIPS else 1


def apply_orientation(pixels: Pixels, orientation: int) -> Pixels:
    """Return the pixels turned and mirrored as that EXIF orientation says, so that the image is upright."""
    if orientation in TURNED_ORIENTATIONS:
        pixels = pixels.transpose(1, 0, 2)
    vertical, horizontal = _FLIPS[orientation]
    return np.ascontiguousarray(pixels[::vertical, ::horizontal])


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
    height, width = shrunk_size(info.height, info.width, size, side)
    if (height, width) == (info.height, info.width):
        return bytes(data)
    colours = "GRAY" if info.components == 1 else "RGB"
    pixels = _decode_shrunk(data, info, colours, _max_divisor(info, height, width))
    if pixels.shape[:2] != (height, width):
        cv2 = import_opencv()
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    shrunk = encode_jpeg(pixels.reshape(height, width, -1), quality)
    return _with_metadata(shrunk, flat_view(data), keep_profile=not info.cmyk)


def shrunk_size(height: int, width: int, size: int, side: Literal["long", "short"]) -> tuple[int, int]:
    """Return the height and width of an image whose long or short side is shrunk to `size`, unless it is smaller."""
    reference = (max if side == "long" else min)(height, width)
    if reference <= size:
        return height, width
    shrunk_height, shrunk_width = (max(1, (2 * n * size + reference) // (2 * reference)) for n in (height, width))
    return shrunk_height, shrunk_width


def _max_divisor(info: JpegInfo, min_height: int, min_width: int) -> int:
    """Return by how much the image may be shrunk so that neither side falls below the minimum: 8, 4, 2 or 1.

    libjpeg-turbo has vector code for these only: 7/8 takes twice the time of the full size.
    """
    for divisor in (8, 4, 2):
        if -(-info.height // divisor) >= min_height and -(-info.width // divisor) >= min_width:
            return divisor
    return 1


def _decode_shrunk(
    data: Buffer,
    info: JpegInfo,
    colours: str,
    divisor: int,
    coarse_chroma: bool = False,
    scratch: ScratchBuffer | None = None,
) -> NDArray[np.uint8]:
    if info.stray_bytes:
        data = without_stray_bytes(data)
    pixels: NDArray[np.uint8]
    height, width, channels = -(-info.height // divisor), -(-info.width // divisor), 3 if colours == "RGB" else 1
    memory = scratch.array((height * width * channels,)) if scratch is not None and not info.cmyk else None
    try:
        pixels = decode_with_turbojpeg(
            data, "CMYK" if info.cmyk else colours, height, width, coarse_chroma=coarse_chroma, memory=memory
        )
    except DecodeError as error:
        if _UNUSUAL_SAMPLING not in error.reason:
            raise
        return _decode_with_pillow(data, colours, divisor)
    if info.cmyk:
        from PIL import Image  # late, here and below: few images need it, and its import would delay every worker

        # Inverted (;I), as Adobe writes CMYK; files without Adobe's marker follow the same convention.
        size = (pixels.shape[1], pixels.shape[0])
        image = Image.frombuffer("CMYK", size, pixels, "raw", "CMYK;I", 0, 1)
        pixels = np.array(image.convert("L" if colours == "GRAY" else "RGB"))
    return pixels


def _decode_with_pillow(data: Buffer, colours: str, divisor: int) -> NDArray[np.uint8]:
    """Decode with Pillow, which is slower, and detects missing data but not damage.

    Image.open is not used, since its limit of pixels differs from the guard's.
    """
    from PIL import JpegImagePlugin

    try:
        with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
            return np.array(image.convert("L" if colours == "GRAY" else "RGB").reduce(divisor))
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises any error that its parsers run into
        raise jpeg_failure(str(error)) from error


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


@functools.cache
def import_opencv() -> ModuleType:
    """Import OpenCV and turn off its own threads, which would compete for the cores that decode other samples.

    This happens in the process that resizes, at its first resize, so importing Penstock does not change the user's
    setting.
    """
    import cv2

    cv2.setNumThreads(0)
    return cv2


def decode_pillow_image(data: Buffer, mode: ImageMode = "RGB", *, oriented: bool = False) -> Pixels:
    """Return the pixels of the first image of a file that is not a JPEG; the alpha channel is left out.

    An image of more than 8 bits per channel is refused unless the mode is "I;16", because it would lose the rest.

    Args:
        data: The bytes of the file.
        mode: RGB, greyscale, or 16-bit greyscale.
        oriented: Whether the rotation in the EXIF data is applied. For TIFF, Pillow always applies it.
    """
    with open_with_pillow(data) as image:
        bits = _bits_per_channel(image)
        if mode == "I;16":
            if bits <= 8 or not image.mode.startswith("I"):
                raise SampleError(
                    f'mode="I;16" expects 16-bit greyscale, and the image has {bits} bits and mode {image.mode}',
                    stage="decode",
                    advice='Read it with mode="L" or "RGB"'
                    if bits <= 8
                    else "Store it as .npy, and read it with Array",
                )
            pixels = _uint16(_stored_values(image))[:, :, None]
        else:
            if bits > 8:
                raise SampleError(
                    f"the image has {bits} bits per channel, of which mode={mode!r} would keep 8",
                    stage="decode",
                    advice='Read it with mode="I;16"'
                    if image.mode.startswith("I")
                    else "Store it with 8 bits per channel, or as .npy, and read that with Array",
                )
            image.info.pop("transparency", None)  # it has no effect here, and Pillow warns of it
            pixels = np.array(image.convert(mode))
            pixels = pixels.reshape(*pixels.shape[:2], -1)
        return apply_orientation(pixels, _orientation(image.getexif)) if oriented else pixels


def decode_mask(data: Buffer) -> NDArray[Any]:
    """Return the class ids (height, width) of a greyscale, palette, 1-bit or 16-bit image: numbers, never colours.

    The ids of a palette image are its indices, those of a 1-bit image 0 and 1. An alpha channel must be opaque
    everywhere: what a transparent id means is not known here.
    """
    if is_jpeg(data):
        info = inspect_jpeg(data)
        if info.components != 1:
            raise _colours_in_mask("YCbCr" if info.components == 3 else "CMYK")
        return decode_jpeg(data, "L", info=info)[:, :, 0]
    with open_with_pillow(data) as image:
        mode = image.mode
        if mode in ("LA", "PA") and _bits_per_channel(image) <= 8:
            if image.getchannel("A").getextrema()[0] < _OPAQUE:
                raise SampleError("a mask has transparent pixels", stage="decode", advice="Store it without alpha")
            image = image.getchannel(0)
        elif mode not in ("1", "L", "P") and not mode.startswith("I"):
            raise _colours_in_mask(mode)
        ids = _stored_values(image)
        return ids.astype(np.uint8) if ids.dtype == bool else ids


def verify_image(data: Buffer) -> None:
    """Decode an image of any known format and depth completely; raise an error if that fails."""
    if is_jpeg(data):
        decode_jpeg(data)
    else:
        with open_with_pillow(data) as image:
            image.load()


def _colours_in_mask(mode: str) -> SampleError:
    return SampleError(
        f"a mask of mode {mode} has no class ids", stage="decode", advice="Store ids in a greyscale or palette PNG"
    )


@contextmanager
def open_with_pillow(data: Buffer) -> Iterator[Any]:
    """Open an image and turn whatever Pillow raises, here or in the body, into an error of ours."""
    from PIL import Image, UnidentifiedImageError  # late: workers that decode no such image start sooner

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large(f"{image.width}×{image.height}")
            yield image
    except (SampleError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(str(error)) from error
    except UnidentifiedImageError as error:
        raise DecodeError(
            f"not an image that can be decoded: it begins with {bytes(flat_view(data)[:8])!r}",
            stage="decode",
            advice=f"Known formats: JPEG, {', '.join(_FORMATS)}. Check what the file really is",
        ) from error
    except Exception as error:  # Pillow raises any error that its parsers run into
        raise DecodeError(
            f"cannot be decoded as an image: {error}",
            stage="decode",
            advice="Copy or download it again, or leave the sample out",
        ) from error


def _bits_per_channel(image: Any) -> int:
    """Return the bits of a channel in the file, of which Pillow may drop some without notice."""
    if image.format == "PNG":
        return 16 if _decoder_arguments(image).endswith(";16B") else 8
    if image.format == "TIFF":
        return int(max(image.tag_v2.get(_TIFF_BITS_PER_SAMPLE, (1,))))
    if image.format == "PPM":
        return max(8, _largest_value(image).bit_length())
    return 8


def _largest_value(image: Any) -> int:
    """Return the number that stands for white in a PPM or PGM file; Pillow scales all values to 255 or 65535."""
    arguments = _decoder_arguments(image)
    if isinstance(arguments, tuple):
        return int(arguments[-1])
    return 65535 if image.mode[0] in "IF" else 255


def _decoder_arguments(image: Any) -> Any:
    """Return what the decoder of an image that is not yet loaded is called with."""
    return image.tile[0][3]


def _stored_values(image: Any) -> NDArray[Any]:
    """Return the numbers that a file of one channel holds."""
    largest = _largest_value(image) if image.format == "PPM" else 0
    values = np.array(image)
    white = 65535 if image.mode[0] == "I" else 255
    if largest not in (0, white):
        values = np.rint(values * (largest / white)).astype(np.int32)
    return values


def _uint16(values: NDArray[Any]) -> NDArray[np.uint16]:
    if values.min(initial=0) < 0 or values.max(initial=0) > np.iinfo(np.uint16).max:
        raise SampleError(
            "the image holds values that 16 bits cannot",
            stage="decode",
            advice="Store it as .npy, and read it with Array",
        )
    return values.astype(np.uint16)


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
