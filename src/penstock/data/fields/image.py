"""The image field: decodes an image and resizes it straight into its slot, and the geometry of resizing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.data.fields.base import as_suffixes
from penstock.data.fields.gpu_transform import GpuTransform
from penstock.errors import GuardError, SampleError, SettingError
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.codecs.images import ScratchBuffer, decode_jpeg, decode_pillow_image, import_opencv
from penstock.shards.guards.jpeg import MAX_PIXELS, inspect_jpeg

Pixels = NDArray[np.uint8]
Fit = Literal["pad", "crop", "stretch", "short"]

_decode_scratch, _resize_scratch = ScratchBuffer(), ScratchBuffer()
"""Reused memory: its content is copied into the sample's slot before the thread decodes the next image."""


@dataclass(frozen=True)
class Image:
    """`Image(".jpg", size=224, fit="crop")`: RGB pixels, uint8, (3, 224, 224).

    quality "fast" lets the JPEG decoder shrink by 2, 4 or 8 while it decodes, and then resizes linearly, or by area
    where more than a factor of two is left; "exact" decodes at full size and resizes with antialiasing, as Pillow does.
    Without a size, or with fit="short", images keep their aspect ratio and are delivered as a list. dtype "float32" or
    "float16" scales the values to 0…1.

    `gpu_transform` is applied after the copy, on the GPU where there is one; `layout` is then the layout of the bytes
    that are copied. `decode` selects what decodes JPEGs when batches go to a GPU: the CPU cores, the GPU, both
    ("hybrid"), or the split that measurements favour ("auto").
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
            raise SettingError(f"an image of size {self.size} has no pixels")
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
            raise SettingError("fit and quality control how an image is resized", advice="Give a size, or omit them")
        self._check_gpu_settings()

    def _check_gpu_settings(self) -> None:
        settings = {"gpu_transform": self.gpu_transform is not None, f"decode={self.decode!r}": self.decode != "cpu"}
        for name in (name for name, is_set in settings.items() if is_set):
            if not self.fixed_shape:
                raise SettingError(f"{name} needs images of one shape", advice="Give a size, and no fit='short'")
            if self.dtype != "uint8":
                raise SettingError(
                    f"{name} needs dtype='uint8', not {self.dtype!r}", advice="Give the dtype to gpu_transform"
                )
        if self.gpu_transform is not None:
            self.gpu_transform.check_fits(self.sides)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The declared suffixes as a tuple."""
        return as_suffixes(self.suffix)

    @property
    def fixed_shape(self) -> bool:
        """Whether all images come out in one shape."""
        return self.size is not None and self.fit != "short"

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of all images; only where they have one shape."""
        assert self.size is not None
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image in its slot, in the declared layout; only where all images have one shape."""
        return (3, *self.sides) if self.layout == "CHW" else (*self.sides, 3)

    def decode_value(self, suffix: str, data: memoryview) -> NDArray[Any]:
        """Decode the image into an array of its own."""
        if self.size is None:
            pixels = decode_jpeg(data) if codec_of(suffix) == "jpeg" else decode_pillow_image(data)
            height, width = pixels.shape[:2]
        else:
            pixels, geometry = self._decode(suffix, data)
            height, width = geometry.out_height, geometry.out_width
        shape = (3, height, width) if self.layout == "CHW" else (height, width, 3)
        out = np.empty(shape, self.dtype)
        if self.size is None:
            self._store(pixels, out, height, width)
        else:
            self._fill(pixels, geometry, out)
        return out

    def decode_into(self, suffix: str, data: memoryview, slot: NDArray[Any]) -> None:
        """Decode and resize the image once, and write it into the slot, split into planes if the layout wants that."""
        pixels, geometry = self._decode(suffix, data)
        if slot.shape != self.shape:
            raise SampleError(f"image is {list(self.shape)} where {list(slot.shape)} is expected", stage="decode")
        self._fill(pixels, geometry, slot)

    def _decode(self, suffix: str, data: memoryview) -> tuple[Pixels, FitGeometry]:
        if codec_of(suffix) != "jpeg":
            pixels = decode_pillow_image(data)
            return pixels, self.geometry(pixels.shape[0], pixels.shape[1])
        info = inspect_jpeg(data)
        geometry = self.geometry(info.height, info.width)
        height, width = (geometry.height, geometry.width) if self.quality == "fast" else (0, 0)
        return decode_jpeg(data, min_height=height, min_width=width, info=info, scratch=_decode_scratch), geometry

    def geometry(self, height: int, width: int) -> FitGeometry:
        """Return how an image of that size fits; refuse one that would be enlarged beyond MAX_PIXELS meanwhile."""
        geometry = fit_geometry(height, width, self.sides, self.fit)
        if geometry.height * geometry.width > MAX_PIXELS:
            raise GuardError(
                f"an image of {height}×{width} would be enlarged to {geometry.height}×{geometry.width}",
                stage="guard",
                advice='Leave the sample out, or use fit="pad" or "stretch"',
            )
        return geometry

    def _fill(self, pixels: Pixels, geometry: FitGeometry, slot: NDArray[Any]) -> None:
        rows, columns = geometry.covered
        resized = self._resize(pixels, geometry)[geometry.top : geometry.top + rows, geometry.left :]
        self._store(resized[:, :columns], slot, rows, columns)
        _clear_padding(slot, rows, columns, self.layout)

    def _resize(self, pixels: Pixels, geometry: FitGeometry) -> Pixels:
        if pixels.shape[:2] == (geometry.height, geometry.width):
            return pixels
        if self.quality == "exact":
            from PIL import Image as Pillow

            size = (geometry.width, geometry.height)
            return np.asarray(Pillow.fromarray(pixels).resize(size, Pillow.Resampling.BILINEAR))
        return _resize_fast(pixels, geometry.height, geometry.width)

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
            _split_planes(pixels, targets)
            return
        for target, plane in zip(targets, import_opencv().split(pixels), strict=True):
            np.divide(plane, 255, out=target, casting="same_kind", dtype=np.float32)


def _split_planes(pixels: Pixels, targets: list[Pixels]) -> None:
    """Split RGB pixels into planes, straight into the targets where OpenCV allows it.

    This is many times faster than a transposed copy.
    """
    for target, plane in zip(targets, import_opencv().split(pixels, targets), strict=True):
        if plane is not target and not np.shares_memory(plane, target):
            target[...] = plane


def _resize_fast(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize linearly; a side that shrinks to less than a half is resized by area first.

    Linear interpolation reads two neighbours, so below a half it would skip pixels.
    """
    cv2 = import_opencv()
    if pixels.shape[0] > 2 * height or pixels.shape[1] > 2 * width:
        smaller = min(pixels.shape[1], width), min(pixels.shape[0], height)
        pixels = cv2.resize(pixels, smaller, interpolation=cv2.INTER_AREA)
    if pixels.shape[:2] != (height, width):
        out = _resize_scratch.array((height, width, 3))
        pixels = cv2.resize(pixels, (width, height), dst=out, interpolation=cv2.INTER_LINEAR)
    return pixels


def _clear_padding(slot: NDArray[Any], rows: int, columns: int, layout: str) -> None:
    """Write the black padding, which every sample needs because slots are reused."""
    area = slot if layout == "HWC" else slot.transpose(1, 2, 0)
    area[rows:] = 0
    area[:rows, columns:] = 0


@dataclass(frozen=True, slots=True)
class FitGeometry:
    """How an image fits its output.

    The image is resized to height × width, `top` rows and `left` columns are cut off, and the rest is put at the upper
    left of the output.
    """

    height: int
    width: int
    top: int
    left: int
    out_height: int
    out_width: int

    @property
    def covered(self) -> tuple[int, int]:
        """Rows and columns of the output that the image covers; the rest is padding."""
        return min(self.height - self.top, self.out_height), min(self.width - self.left, self.out_width)


def fit_geometry(height: int, width: int, size: tuple[int, int], fit: Fit) -> FitGeometry:
    """Return how a height × width image fits into the size.

    pad: all of the image, as large as it fits, with black padding below or to the right. crop: scaled to cover the
    output, the middle is kept. stretch: scaled to exactly that size. short: the shorter side becomes size[0], nothing
    is cut or padded.
    """
    out_height, out_width = size
    if fit == "stretch":
        return FitGeometry(out_height, out_width, 0, 0, out_height, out_width)
    if fit == "short":
        scaled = _scale(height, width, out_height, min(height, width))
        return FitGeometry(*scaled, 0, 0, *scaled)
    # the aspect ratios are compared in whole numbers, so that no rounding of floats decides whether a row is cut
    wide = width * out_height > height * out_width
    by_width = wide if fit == "pad" else not wide
    scaled = _scale(height, width, out_width, width) if by_width else _scale(height, width, out_height, height)
    if fit == "pad":
        return FitGeometry(*scaled, 0, 0, out_height, out_width)
    return FitGeometry(*scaled, (scaled[0] - out_height) // 2, (scaled[1] - out_width) // 2, out_height, out_width)


def _scale(height: int, width: int, target: int, reference: int) -> tuple[int, int]:
    """Return both sides times target / reference, rounded half up, at least 1."""
    return tuple(max(1, (2 * side * target + reference) // (2 * reference)) for side in (height, width))  # type: ignore[return-value]
