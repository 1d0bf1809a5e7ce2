"""A picture, decoded and resized straight into its slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import as_suffixes
from penstock.data.fields.fit import Fit, FitGeometry, fit_geometry
from penstock.data.fields.gpu_transform import GpuTransform
from penstock.errors import GuardError, SampleError, SettingError
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.codecs.images import ScratchBuffer, decode_jpeg, decode_pillow_image, import_opencv
from penstock.shards.guards.jpeg import MAX_PIXELS, inspect_jpeg

Pixels = NDArray[np.uint8]

_decoded_into, _resized_into = ScratchBuffer(), ScratchBuffer()
"""What is in them is copied into the sample's slot before the next picture comes."""


@dataclass(frozen=True)
class Image:
    """`Image(".jpg", size=224, fit="crop")`: RGB pixels, uint8, (3, 224, 224).

    quality "fast" lets the JPEG decoder shrink by 2, 4 or 8 on the way and resizes linearly, or by area where more than
    a half is left to shrink; "exact" decodes in full and resizes with antialiasing, as Pillow does. Without a size, or
    with fit="short", pictures keep their shape and are delivered as a list. dtype "float32" or "float16" scales to 0…1.

    `gpu_transform` says what is done after the copy, on the GPU where there is one; then `layout` is how the bytes get there.
    `decode` says who decodes JPEGs where batches go to a GPU: the cores, the card, both, or whoever is measured to.
    """

    suffix: str | tuple[str, ...] = (".jpg", ".jpeg", ".png")
    size: int | tuple[int, int] | None = None
    fit: Fit = "pad"
    quality: Literal["fast", "exact"] = "fast"
    layout: Literal["CHW", "HWC"] = "CHW"
    dtype: Literal["uint8", "float16", "float32"] = "uint8"
    gpu_transform: GpuTransform | None = None
    decode: Literal["cpu", "gpu", "hybrid", "auto"] = "cpu"

    def __post_init__(self) -> None:
        if self.size is not None and min(self.sides) < 1:
            raise SettingError(f"a picture of size {self.size} has no pixels")
        if self.fit == "short" and isinstance(self.size, tuple):
            raise SettingError('fit="short" takes one number, the short side')
        for name, value, known in (
            ("fit", self.fit, ("pad", "crop", "stretch", "short")),
            ("quality", self.quality, ("fast", "exact")),
            ("layout", self.layout, ("CHW", "HWC")),
            ("dtype", self.dtype, ("uint8", "float16", "float32")),
            ("decode", self.decode, ("cpu", "gpu", "hybrid", "auto")),
        ):
            if value not in known:
                raise SettingError(f"{name} {value!r} is not known", advice=f"Use one of {', '.join(known)}")
        if self.size is None and (self.fit, self.quality) != ("pad", "fast"):
            raise SettingError("fit and quality say how a picture is resized", advice="Give a size, or leave them out")
        self._check_afterwards()

    def _check_afterwards(self) -> None:
        given = {"gpu_transform": self.gpu_transform is not None, f"decode={self.decode!r}": self.decode != "cpu"}
        for name in (name for name, is_given in given.items() if is_given):
            if not self.fixed_shape:
                raise SettingError(f"{name} needs pictures of one shape", advice="Give a size, and no fit='short'")
            if self.dtype != "uint8":
                raise SettingError(
                    f"{name} needs dtype='uint8', not {self.dtype!r}", advice="Give the dtype to gpu_transform"
                )
        if self.gpu_transform is not None:
            self.gpu_transform.check_fits(self.sides)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """As declared."""
        return as_suffixes(self.suffix)

    @property
    def fixed_shape(self) -> bool:
        """Whether all pictures come out in one shape."""
        return self.size is not None and self.fit != "short"

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of all pictures, where they have one shape."""
        assert self.size is not None
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def decode_value(self, suffix: str, data: memoryview) -> NDArray[Any]:
        """The picture in memory of its own."""
        if self.size is None:
            pixels = decode_jpeg(data) if codec_of(suffix) == "jpeg" else decode_pillow_image(data)
            height, width = pixels.shape[:2]
        else:
            pixels, placement = self._pixels(suffix, data)
            height, width = placement.out_height, placement.out_width
        shape = (3, height, width) if self.layout == "CHW" else (height, width, 3)
        out = np.empty(shape, self.dtype)
        if self.size is None:
            self._store(pixels, out, height, width)
        else:
            self._fill(pixels, placement, out)
        return out

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> None:
        """From JPEG bytes to the slot: one decode, one resize, and the split into planes if asked for."""
        pixels, placement = self._pixels(suffix, data)
        expected = (3, *self.sides) if self.layout == "CHW" else (*self.sides, 3)
        if slot.shape != expected:
            raise SampleError(f"picture is {list(expected)} where {list(slot.shape)} is expected", stage="decode")
        self._fill(pixels, placement, slot)

    def _pixels(self, suffix: str, data: memoryview) -> tuple[Pixels, FitGeometry]:
        if codec_of(suffix) != "jpeg":
            pixels = decode_pillow_image(data)
            return pixels, self.geometry(pixels.shape[0], pixels.shape[1])
        info = inspect_jpeg(data)
        placement = self.geometry(info.height, info.width)
        height, width = (placement.height, placement.width) if self.quality == "fast" else (0, 0)
        return decode_jpeg(data, min_height=height, min_width=width, info=info, scratch=_decoded_into), placement

    def geometry(self, height: int, width: int) -> FitGeometry:
        """Where the picture goes, if what it is enlarged to on the way is not beyond any picture."""
        placement = fit_geometry(height, width, self.sides, self.fit)
        if placement.height * placement.width > MAX_PIXELS:
            raise GuardError(
                f"a picture of {height}×{width} would be enlarged to {placement.height}×{placement.width}",
                stage="guard",
                advice='Leave the sample out, or use fit="pad" or "stretch"',
            )
        return placement

    def _fill(self, pixels: Pixels, placement: FitGeometry, slot: NDArray[Any]) -> None:
        rows, columns = placement.covered
        resized = self._resize(pixels, placement)[placement.top : placement.top + rows, placement.left :]
        self._store(resized[:, :columns], slot, rows, columns)
        _blacken(slot, rows, columns, self.layout)

    def _resize(self, pixels: Pixels, placement: FitGeometry) -> Pixels:
        if pixels.shape[:2] == (placement.height, placement.width):
            return pixels
        if self.quality == "exact":
            from PIL import Image as Pillow

            size = (placement.width, placement.height)
            return np.asarray(Pillow.fromarray(pixels).resize(size, Pillow.Resampling.BILINEAR))
        return _resize_fast(pixels, placement.height, placement.width)

    def _store(self, pixels: Pixels, slot: NDArray[Any], rows: int, columns: int) -> None:
        if self.layout == "HWC":
            target = slot[:rows, :columns]
            if self.dtype == "uint8":
                target[...] = pixels
            else:
                np.divide(pixels, 255, out=target, casting="same_kind", dtype=np.float32)
            return
        targets = list(slot[:, :rows, :columns])
        if self.dtype == "uint8":
            _split(pixels, targets)
            return
        for target, plane in zip(targets, import_opencv().split(pixels), strict=True):
            np.divide(plane, 255, out=target, casting="same_kind", dtype=np.float32)


def _split(pixels: Pixels, targets: list[Pixels]) -> None:
    """Colours to planes, many times faster than a transposed copy; straight into the slot where OpenCV will."""
    for target, plane in zip(targets, import_opencv().split(pixels, targets), strict=True):
        if plane is not target and not np.shares_memory(plane, target):
            target[...] = plane


def _resize_fast(pixels: Pixels, height: int, width: int) -> Pixels:
    """Linear looks at two neighbours and skips pixels below a half: a side that shrinks by more goes by area first."""
    cv2 = import_opencv()
    if pixels.shape[0] > 2 * height or pixels.shape[1] > 2 * width:
        smaller = min(pixels.shape[1], width), min(pixels.shape[0], height)
        pixels = cv2.resize(pixels, smaller, interpolation=cv2.INTER_AREA)
    if pixels.shape[:2] != (height, width):
        out = _resized_into.array((height, width, 3))
        pixels = cv2.resize(pixels, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    return pixels


def _blacken(slot: NDArray[Any], rows: int, columns: int, layout: str) -> None:
    """Slots are used again and again: padding must be written each time."""
    area = slot if layout == "HWC" else slot.transpose(1, 2, 0)
    area[rows:] = 0
    area[:rows, columns:] = 0
