"""The compiled decoder; `native/` has its code, and penstock.shards.codecs.jpeg_window is its only user."""

import numpy as np
from numpy.typing import NDArray

def decode_window(
    jpeg: bytes | bytearray | memoryview,
    out: NDArray[np.uint8],
    divisor: int,
    coarse_chroma: bool,
    mirrored: bool,
    /,
    *sides: int,
) -> bool: ...
