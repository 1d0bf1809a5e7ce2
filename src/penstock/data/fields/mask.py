"""The mask field: class ids per pixel, moved with the image they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import Field, SampleContext
from penstock.data.fields.geometry import ImageGeometry
from penstock.errors import SampleError, SettingError
from penstock.shards.codecs.images import decode_mask

Ids = NDArray[Any]


@dataclass(frozen=True)
class Mask(Field):
    """`Mask("_mask.png", like="image")`: class ids, (height, width), at the place of the image named `like`.

    The file holds ids, not colours: a greyscale, palette (its indices), 1-bit or 16-bit image. The mask takes the same
    window, size and mirroring as its image and is resized to the nearest id, so no id appears that the file does not
    hold. It must be as large as its image (after the EXIF rotation, if the image field applies that).

    Args:
        suffix: The part to read, or several alternatives.
        like: Name of the image field. None: the mask is delivered in its own size, in a list.
        dtype: Integer type of the ids. An id that it cannot hold is an error of the sample.
        fill: The id of the padding; 255 is what segmentation losses usually ignore.
        optional: Whether a sample may have no mask. It then gets one that is all `fill`, or None in a list.
    """

    suffix: str | tuple[str, ...]
    like: str | None = None
    dtype: Literal["uint8", "int16", "int32", "int64"] = "uint8"
    fill: int | None = 255
    optional: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("uint8", "int16", "int32", "int64"):
            raise SettingError(f"dtype {self.dtype!r} is not known", advice="Use uint8, int16, int32 or int64")
        if self.fill is not None and not _fits(self.fill, self.fill, self.dtype):
            raise SettingError(f"fill={self.fill} does not fit {self.dtype}", advice="Use a larger dtype")
        if self.fill is None and not self.optional:
            raise SettingError("fill=None is for optional masks", advice="Give an id, such as fill=255")

    @property
    def fixed_shape(self) -> bool:
        """Whether masks come out in one shape, as far as this field knows; its image may have none."""
        return self.like is not None and self.fill is not None

    def decode_value(self, suffix: str, data: memoryview, sample: SampleContext) -> Ids | None:
        """Decode the mask into an array of its own."""
        ids = self._decode(data)
        if self.like is None:
            return ids.astype(self.dtype)
        geometry = sample.geometries[self.like]
        if not geometry.out_height:  # there is no image, and images are delivered in a list
            return None
        out = np.empty((geometry.out_height, geometry.out_width), self.dtype)
        self._place(ids, geometry, out)
        return out

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any], sample: SampleContext) -> None:
        """Decode the mask and write it into its slot."""
        assert self.like is not None
        self._place(self._decode(data), sample.geometries[self.like], slot)

    def missing_value(self, sample: SampleContext) -> Ids | None:
        """Return a mask that is all `fill`, as large as its image; None where masks are delivered in a list."""
        if self.like is None or self.fill is None:
            return None
        geometry = sample.geometries[self.like]
        if not geometry.out_height:
            return None
        return np.full((geometry.out_height, geometry.out_width), self.fill, self.dtype)

    def _decode(self, data: memoryview) -> Ids:
        ids = decode_mask(data)
        low, high = int(ids.min(initial=0)), int(ids.max(initial=0))
        if not _fits(low, high, self.dtype):
            raise SampleError(
                f"the mask holds ids from {low} to {high}, more than {self.dtype} can",
                stage="decode",
                advice="Give a larger dtype",
            )
        return ids

    def _place(self, ids: Ids, geometry: ImageGeometry, out: Ids) -> None:
        """Write the mask into its output, which is all padding if the sample has no image."""
        if geometry.image_height and ids.shape != (geometry.image_height, geometry.image_width):
            raise SampleError(
                f"the mask is {ids.shape[0]}×{ids.shape[1]} where its image {self.like!r} is "
                f"{geometry.image_height}×{geometry.image_width}",
                stage="decode",
                advice="Make both of one size. With exif_orientation=True, masks are as large as turned images",
            )
        rows, columns = geometry.covered
        if (rows, columns) != out.shape:
            out[...] = self.fill if self.fill is not None else 0
        if not geometry.image_height:
            return
        window = geometry.window
        nearest = _nearest_16 if ids.itemsize == 2 else _nearest
        row_ids = window.top + nearest(window.height, geometry.height)[geometry.cut_top :][:rows]
        column_ids = window.left + nearest(window.width, geometry.width)[geometry.cut_left :][:columns]
        if geometry.mirrored:
            column_ids = column_ids[::-1]
        top, left = geometry.pad_top, geometry.pad_left
        out[top : top + rows, left : left + columns] = ids.take(row_ids, axis=0).take(column_ids, axis=1)


def _nearest(length: int, resized: int) -> NDArray[np.int64]:
    """Return the pixels of the original that are nearest to the centres of the resized one's.

    Centres are added up one by one, as by Pillow, so that one that lies between two pixels is rounded alike.
    """
    steps = np.full(resized, length / resized)
    steps[0] /= 2
    return np.minimum(np.add.accumulate(steps).astype(np.int64), length - 1)


def _nearest_16(length: int, resized: int) -> NDArray[np.int64]:
    """Return the same with each centre computed by itself, as Pillow does it for 16-bit images."""
    return np.minimum(((np.arange(resized) + 0.5) * (length / resized)).astype(np.int64), length - 1)


def _fits(low: int, high: int, dtype: str) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= low and high <= limits.max)
