"""Places decoded images into their slots of a batch: resized with antialiasing, in few kernel launches.

At each launch another Python thread may take the interpreter's lock first. So one launch of a kernel of our own places
images of all shapes, where Triton works. Elsewhere the images of each shape are resized together, and the results for
all shapes are rounded and put into the batch together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from penstock.data.device.gpu_decode.decode_chunks import split_chunks
from penstock.data.device.transform.kernel_transform import kernel_works
from penstock.data.device.transform.parameters import upload
from penstock.data.fields.geometry import ImageGeometry, fit_geometry
from penstock.data.fields.image import Image

if TYPE_CHECKING:
    from torch import Tensor

RESIZED_PIXELS = 1 << 24
"""Pixels resized at a time, before or after resizing, whichever is more: shape by shape that takes some 0.2 GB of GPU
memory, 0.3 GB at most. It is a limit because the decoder's kernels for the next images wait behind them."""


class SlottedImage(NamedTuple):
    """A decoded image that is to be placed into a batch. No two images of a batch have the same slot."""

    slot: int
    geometry: ImageGeometry
    pixels: Tensor
    """uint8 (3, height, width)."""


SlottedImages = Sequence[SlottedImage]
PlaceImages = Callable[[SlottedImages, "Tensor"], None]
"""A function that places images into a batch."""


def choose_placement(image: Image, device: torch.device) -> PlaceImages:
    """Return the kernel if it works on the device, else the placement by torch.

    The kernel is tried here, which also compiles it before the first batch.
    """
    if device.type == "cuda":
        kernel = KernelPlacement(image)

        def place_one() -> None:
            black = torch.zeros((3, *image.sides), dtype=torch.uint8, device=device)
            whole = fit_geometry(*image.sides, image.sides, "stretch")
            kernel([SlottedImage(0, whole, black)], torch.empty_like(black))

        if kernel_works(place_one, instead="images are placed shape by shape"):
            return kernel
    return partial(place_by_shape, image)


class KernelPlacement:
    """The placement by a Triton kernel: one launch for images of all shapes, or several if they have many pixels."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._fill = _colour(image)

    def __call__(self, images: SlottedImages, out: Tensor) -> None:
        """Place the images on the current stream of the batch's device."""
        from penstock.data.device.gpu_decode import placement_kernel as kernel

        if not images:
            return
        contiguous = [image.pixels.contiguous() for image in images]
        table = upload(
            np.array([_parameters(image, pixels) for image, pixels in zip(images, contiguous, strict=True)], np.int64),
            out.device,
        )
        rows, columns = self._image.sides
        tiles, hwc = -(-rows * columns // kernel.TILE), self._image.layout == "HWC"
        with torch.cuda.device(out.device):
            for chunk in split_chunks(
                [image.geometry.window.height * image.geometry.window.width for image in images], RESIZED_PIXELS
            ):
                launch = kernel.place_kernel[((chunk.stop - chunk.start) * tiles,)]
                launch(
                    table[chunk],
                    out,
                    tiles,
                    rows,
                    columns,
                    *self._fill,
                    hwc,
                    kernel.PARAMETERS,
                    kernel.TILE,
                    enable_fp_fusion=False,
                )


def _parameters(image: SlottedImage, pixels: Tensor) -> tuple[int, ...]:
    """Return the row of the kernel's table for an image."""
    fit, (_, image_height, image_width) = image.geometry, pixels.shape
    top, left, height, width = fit.window
    return (
        pixels.data_ptr() + top * image_width + left,
        image.slot,
        height,
        width,
        fit.height,
        fit.width,
        fit.cut_top,
        fit.cut_left,
        *fit.covered,
        fit.pad_top,
        fit.pad_left,
        int(fit.mirrored),
        image_width,
        image_height * image_width,
    )


def _colour(image: Image) -> tuple[float, float, float]:
    """Return the colour of the padding."""
    if isinstance(image.fill, tuple) and len(image.fill) == 3:
        return image.fill[0], image.fill[1], image.fill[2]
    fill = image.fill[0] if isinstance(image.fill, tuple) else image.fill or 0
    return fill, fill, fill


def place_by_shape(image: Image, images: SlottedImages, out: Tensor) -> None:
    """Place the images by torch's own kernels, on any device."""
    target = out.permute(0, 3, 1, 2) if image.layout == "HWC" else out
    by_shape = sorted(images, key=lambda each: (_group(each), each.slot))
    for chunk in split_chunks([_max_pixels(each.geometry) for each in by_shape], RESIZED_PIXELS):
        groups = [list(group) for _, group in groupby(by_shape[chunk], _group)]
        _store(target, [each.slot for each in by_shape[chunk]], _resize(image, groups))


def _group(image: SlottedImage) -> tuple[int, ...]:
    """Return what images must have in common to be resized together."""
    fit = image.geometry
    return *image.pixels.shape, *fit.window, fit.height, fit.width, int(fit.mirrored)


def _resize(image: Image, groups: Sequence[SlottedImages]) -> Tensor:
    """Return uint8 (images, 3, *sides); the images of a group have one shape and one geometry."""
    device = groups[0][0].pixels.device
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    shape = (sum(map(len, groups)), 3, *image.sides)
    if image.crop is None and image.fit in ("pad", "letterbox"):
        colour = _colour(image)
        canvas = torch.full(shape, colour[0], dtype=dtype, device=device)
        for channel in (1, 2):
            if colour[channel] != colour[0]:
                canvas[:, channel] = colour[channel]
    else:
        canvas = torch.empty(shape, dtype=dtype, device=device)
    begin = 0
    for group in groups:
        fit = group[0].geometry
        top, left, height, width = fit.window
        pixels = torch.stack([each.pixels[:, top : top + height, left : left + width] for each in group]).to(dtype)
        if pixels.shape[2:] != (fit.height, fit.width):
            pixels = torch.nn.functional.interpolate(
                pixels, (fit.height, fit.width), mode="bilinear", antialias=True, align_corners=False
            )
        rows, columns = fit.covered
        pixels = pixels[:, :, fit.cut_top : fit.cut_top + rows, fit.cut_left : fit.cut_left + columns]
        if fit.mirrored:
            pixels = pixels.flip(3)
        end = begin + len(group)
        canvas[begin:end, :, fit.pad_top : fit.pad_top + rows, fit.pad_left : fit.pad_left + columns] = pixels
        begin = end
    return canvas.round_().to(torch.uint8)


def _max_pixels(fit: ImageGeometry) -> int:
    """Return the pixels of an image where it is largest: decoded, resized or placed."""
    return max(fit.window.height * fit.window.width, fit.height * fit.width, fit.out_height * fit.out_width)


def _store(target: Tensor, slots: Sequence[int], pixels: Tensor) -> None:
    begin, end = min(slots), max(slots) + 1
    if list(slots) == list(range(begin, end)):
        target[begin:end] = pixels
    else:
        target.index_copy_(0, upload(np.array(slots), target.device), pixels)
