"""Decode a window of a JPEG and resize it in one call of compiled code, where that code was built.

The code is in `native/`. It skips the rows and columns that the window does not need, and stores no pixel between
decoding and its place in the batch. Where it was not built, simplejpeg and OpenCV do the same in several steps. They
also decode every image that the compiled code leaves to them, because libjpeg warns of it or it is unusual.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock.shards.guards.buffer import Buffer

SWITCH = "PENSTOCK_COMPILED"
"""The environment variable that turns the compiled decoder off if it is 0."""

Side = tuple[int, int, int, int, int, int]
"""Length of the whole image, start and length of the window, length to which it is resized, pixels of that which are
left out at the beginning, and pixels that are stored; along the rows or the columns."""


def decode_jpeg_window(
    data: Buffer,
    out: NDArray[np.uint8],
    rows: Side,
    columns: Side,
    *,
    divisor: int = 1,
    coarse_chroma: bool = False,
    mirrored: bool = False,
) -> bool:
    """Write the resized window into `out`; return whether that was done.

    It is not done, and the content of `out` is undefined, if libjpeg warns of anything, if the image is unusual, or if
    the compiled decoder was not built. The header of the image must have passed `inspect_jpeg`.

    Args:
        data: The bytes of the JPEG.
        out: (rows, columns, 3) for RGB or (rows, columns, 1) for greyscale; a view with any strides.
        rows: What is read and stored along the rows.
        columns: The same along the columns.
        divisor: 2, 4 or 8 lets the decoder shrink the image; the filter does the rest.
        coarse_chroma: Whether colours that are stored at half the size are enlarged without interpolation.
        mirrored: Whether the result is mirrored horizontally.
    """
    decode_window = compiled_decoder()
    return decode_window is not None and decode_window(data, out, divisor, coarse_chroma, mirrored, *rows, *columns)


@functools.cache
def compiled_decoder() -> Callable[..., bool] | None:
    """Return the compiled function, or None if it was not built or is turned off."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        from penstock import _decode
    except ImportError:
        return None
    return _decode.decode_window
