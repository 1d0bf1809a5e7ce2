"""The geometry field: where the pixels of an image come from, for moving predictions back to the original."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import Field, SampleContext


@dataclass(frozen=True)
class Geometry(Field):
    """`"__geometry__": Geometry(like="image")`: how the image named `like` was moved into its output. Reads no part.

    Six numbers, float32: height and width of the original, scale y and x, offset y and x. A pixel coordinate of the
    output is original * scale + offset; scale x is negative where the image is mirrored. All are 0 where an optional
    image is missing. Delivered as a tensor (batch, 6), or as a list where the images are a list.
    """

    like: str = field()

    suffix = ()

    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> NDArray[np.float32]:
        """Return the six numbers."""
        geometry = sample.geometries[self.like]
        size = geometry.image_height, geometry.image_width
        return np.array((*size, *geometry.scale, *geometry.offset), np.float32)
