"""Decode a window of a JPEG and resize it in one call of compiled code, where that code was built.

The code is in `native/`. It skips the rows and columns that the window does not need, and stores no pixel between
decoding and its place in the batch. Where it was not built, simplejpeg and OpenCV do the same in several steps. They
also decode every image that the compiled code leaves to them, because libjpeg warns of it or it is unusual.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

SWITCH = "PENSTOCK_COMPILED"
"""The environment variable that turns the compiled decoder off if it is 0."""

Side = tuple[int, int, int, int, int, int]
"""Length of the whole image, start and length of the window, length to which it is resized, pixels of that which are
left out at the beginning, and pixels that are stored; along the rows or the columns."""


def window_request(
    rows: Side, columns: Side, *, divisor: int = 1, coarse_chroma: bool = False, mirrored: bool = False
) -> tuple[int, ...]:
    """Return the arguments of the compiled decoder for a window, after the JPEG and the output.

    Args:
        rows: What is read and stored along the rows.
        columns: The same along the columns.
        divisor: 2, 4 or 8 lets the decoder shrink the image; the filter does the rest.
        coarse_chroma: Whether colours that are stored at half the size are enlarged without interpolation.
        mirrored: Whether the result is mirrored horizontally.
    """
    return divisor, coarse_chroma, mirrored, *rows, *columns


@functools.cache
def compiled_decoder() -> Callable[..., bool] | None:
    """Return the compiled decoder, or None if it was not built or is turned off.

    It is called with the bytes of a JPEG that has passed `inspect_jpeg`, the output, and a `window_request`. The output
    is an array of bytes of any strides, (rows, columns, 3) for RGB or (rows, columns, 1) for greyscale. The result says
    whether the window was written into it. It was not, and the content of the output is undefined, if libjpeg warns of
    anything in what was decoded, or if the image is unusual.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        from penstock import _decode
    except ImportError:
        return None
    return _decode.decode_window
