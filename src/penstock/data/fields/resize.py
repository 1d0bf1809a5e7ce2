"""Resize the window of an image: fast with OpenCV, or exactly as Pillow does.

Both reduce images by a triangle filter, as Pillow and torchvision do with antialiasing: an output pixel is a mean of
input pixels whose weights fall linearly to 0 at the centres of the neighbouring output pixels.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.geometry import ImageGeometry
from penstock.shards.codecs.images import ScratchBuffer, import_opencv

Pixels = NDArray[Any]
"""(height, width, channels), uint8 or uint16."""

MIN_REDUCTION = 1.6
"""Least factor that is left to the triangle filter where the JPEG decoder has shrunk an image. The decoder's own filter
lets through fine patterns that alias, which shows in the result if less is left (docs/loader.md has the figures)."""
LARGE_SIDE = 512
"""Longest side of an output to which that applies. Larger outputs are made of large photographs, whose finest detail is
weak, and decoding them takes most of the time, so the decoder shrinks them as long as nothing has to be enlarged."""
MIN_COARSE_CHROMA_REDUCTION = 1.3
"""Least factor that hides how the decoder enlarged the colours, which a JPEG stores at half its size."""
MAX_BLURRED = 4
"""Largest factor of reduction in one step; with more, the image is first averaged to twice the output's size."""
MAX_SIDE = 32_766
"""Longest side for which OpenCV's warpAffine works."""

_REACH = MAX_BLURRED - 1
"""Pixels on each side that a blur reads."""
_MAX_EXTRA = 8
"""Most output pixels that are computed and cut off for others to begin with a source pixel, to a tenth of a pixel."""

_blurred, _resized = ScratchBuffer(), ScratchBuffer()


def decoder_divisor(geometry: ImageGeometry) -> int:
    """Return by how much the JPEG decoder may shrink the whole image: 8, 4, 2, or 1 for not at all."""
    window, height, width = geometry.window, geometry.height, geometry.width
    least = 1 if max(height, width) > LARGE_SIDE else MIN_REDUCTION
    for divisor in (8, 4, 2):
        if window.height >= least * divisor * height and window.width >= least * divisor * width:
            return divisor
    return 1


def hides_chroma(geometry: ImageGeometry) -> bool:
    """Return whether the image is reduced so much that its colours may be enlarged coarsely when it is decoded."""
    window = geometry.window
    return (
        window.height >= MIN_COARSE_CHROMA_REDUCTION * geometry.height
        and window.width >= MIN_COARSE_CHROMA_REDUCTION * geometry.width
    )


def resize_fast(pixels: Pixels, geometry: ImageGeometry, divisor: int = 1) -> Pixels:
    """Resize the geometry's window; `pixels` are the whole image, shrunk by the divisor. Return what is not cut off.

    The triangle filter is split into a blur of the input and linear interpolation between blurred pixels. OpenCV has
    vector code for both, and none for the filter as a whole. The result may lie in memory that the next call reuses.
    """
    window, height, width = geometry.window, geometry.height, geometry.width
    top, left = window.top // divisor, window.left // divisor
    bottom, right = -(-(window.top + window.height) // divisor), -(-(window.left + window.width) // divisor)
    pixels = pixels[top:bottom, left:right]
    if divisor == 1 and pixels.shape[:2] == (height, width):
        return _visible(pixels, geometry)
    cv2 = import_opencv()
    rows, columns = window.height / divisor, window.width / divisor  # the window's size in pixels as they are now
    whole = pixels.shape[:2] == (rows, columns)  # else the window begins or ends within a shrunk pixel
    if whole and (rows > MAX_BLURRED * height or columns > MAX_BLURRED * width):
        rows = 2 * height if rows > MAX_BLURRED * height else rows
        columns = 2 * width if columns > MAX_BLURRED * width else columns
        averaged = cv2.resize(pixels, (int(columns), int(rows)), interpolation=cv2.INTER_AREA)
        pixels = averaged.reshape(*averaged.shape[:2], pixels.shape[2])
    down, across = rows / height, columns / width
    if whole or max(pixels.shape) > MAX_SIDE:
        return _resize_visible(pixels, geometry, down, across)
    y, x = window.top / divisor - top, window.left / divisor - left
    first_row, first_column = y + (geometry.cut_top + 0.5) * down - 0.5, x + (geometry.cut_left + 0.5) * across - 0.5
    shape = *geometry.covered, pixels.shape[2]
    resized: Pixels = cv2.warpAffine(
        _blur(pixels, down, across),
        np.array(((across, 0, first_column), (0, down, first_row))),
        (shape[1], shape[0]),
        dst=_scratch(_resized, pixels.dtype, shape),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return resized.reshape(shape)


def _resize_visible(pixels: Pixels, geometry: ImageGeometry, down: float, across: float) -> Pixels:
    """Reduce the pixels by the two factors, but only those that the output shows, and some around them."""
    cv2, channels = import_opencv(), pixels.shape[2]
    resized: Pixels
    rows, columns = geometry.covered
    if (rows, columns) == (geometry.height, geometry.width):
        out = _scratch(_resized, pixels.dtype, (rows, columns, channels))
        resized = cv2.resize(_blur(pixels, down, across), (columns, rows), dst=out, interpolation=cv2.INTER_LINEAR)
        return resized.reshape(rows, columns, channels)
    first_row, top, bottom = _source_range(geometry.cut_top, rows, down, pixels.shape[0])
    first_column, left, right = _source_range(geometry.cut_left, columns, across, pixels.shape[1])
    above, before = min(top, _REACH), min(left, _REACH)  # that the blur needs
    part = _blur(pixels[top - above : bottom + _REACH, left - before : right + _REACH], down, across)
    part = part[above : above + bottom - top, before : before + right - left]
    resized = cv2.resize(part, None, fx=1 / across, fy=1 / down, interpolation=cv2.INTER_LINEAR)
    resized = resized.reshape(*resized.shape[:2], channels)
    first_row, first_column = geometry.cut_top - first_row, geometry.cut_left - first_column
    return resized[first_row : first_row + rows, first_column : first_column + columns]


def _source_range(cut: int, count: int, factor: float, length: int) -> tuple[int, int, int]:
    """Return which output pixel to begin with, and the source pixels for it and all up to cut + count.

    The first output pixel is one of the last that are cut off, because it should begin where a source pixel begins.
    """
    if factor <= 1:
        first = 0
    else:
        first = min(range(max(0, cut - _MAX_EXTRA), cut + 1), key=lambda at: abs(at * factor - round(at * factor)))
    return first, round(first * factor), min(length, ceil((cut + count) * factor) + 1)


def _visible(pixels: Pixels, geometry: ImageGeometry) -> Pixels:
    """Return the part of a resized window that the output shows."""
    rows, columns = geometry.covered
    return pixels[geometry.cut_top : geometry.cut_top + rows, geometry.cut_left : geometry.cut_left + columns]


def _blur(pixels: Pixels, down: float, across: float) -> Pixels:
    kernels = _blur_kernel(across), _blur_kernel(down)
    if max(map(len, kernels)) == 1:
        return pixels
    cv2 = import_opencv()
    out = _scratch(_blurred, pixels.dtype, pixels.shape)
    blurred: Pixels = cv2.sepFilter2D(pixels, -1, *kernels, dst=out, borderType=cv2.BORDER_REPLICATE)
    return blurred.reshape(pixels.shape)


def resize_exact(pixels: Pixels, geometry: ImageGeometry) -> Pixels:
    """Resize the geometry's window as Pillow's crop and resize(BILINEAR) do, to the very same pixels, and cut it."""
    top, left, height, width = geometry.window
    pixels = pixels[top : top + height, left : left + width]
    if pixels.shape[:2] != (geometry.height, geometry.width):
        from PIL import Image as Pillow

        size = (geometry.width, geometry.height)
        image = Pillow.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
        pixels = np.asarray(image.resize(size, Pillow.Resampling.BILINEAR)).reshape(*size[::-1], pixels.shape[2])
    return _visible(pixels, geometry)


@lru_cache(maxsize=256)
def _blur_kernel(factor: float) -> NDArray[np.float32]:
    """Return the weights of the blur that, with linear interpolation after it, gives a triangle filter.

    They are a triangle too, a little narrower than the filter, because interpolation blurs as well: half a pixel² less
    makes the two most alike for all factors.
    """
    reach = sqrt(max(factor * factor - 0.5, 0.0)) if factor > 1 else 0.0
    steps = max(0, ceil(reach) - 1)
    weights = [1 - abs(step) / max(reach, 1) for step in range(-steps, steps + 1)]
    return np.array([weight / sum(weights) for weight in weights], np.float32)


def _scratch(buffer: ScratchBuffer, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Pixels:
    """Return memory for pixels: reused memory for 8 bits, which nearly all images have."""
    return buffer.array(shape) if dtype == np.uint8 else np.empty(shape, dtype)
