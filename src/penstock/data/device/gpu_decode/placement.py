"""Places decoded images into their slots of a batch: resized with antialiasing, in few kernel launches.

At each launch another Python thread may take the interpreter's lock first. So one launch of a kernel of our own places
images of all shapes, where Triton works. Elsewhere the images of each shape are resized together, and the results for
all shapes are rounded and put into the batch together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.data.device.gpu_decode.decode_chunks import split_chunks
from penstock.data.device.transform.kernel_transform import kernel_works
from penstock.data.device.transform.parameters import upload
from penstock.data.fields.image import FitGeometry, Image

if TYPE_CHECKING:
    from torch import Tensor

RESIZED_PIXELS = 1 << 24
"""Pixels resized at a time, before or after resizing, whichever is more: shape by shape that takes some 0.2 GB of GPU
memory, 0.3 GB at most. It is a limit because the decoder's kernels for the next images wait behind them."""
CACHED_SHAPES = 1 << 14
"""Image shapes whose geometry is kept."""

SlottedImages = Sequence[tuple[int, "Tensor"]]
"""uint8 (3, height, width) images of any shapes, each with its slot; no two have the same slot."""
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
            kernel([(0, black)], torch.empty_like(black))

        if kernel_works(place_one, instead="images are placed shape by shape"):
            return kernel
    return partial(place_by_shape, image)


class KernelPlacement:
    """The placement by a Triton kernel: one launch for images of all shapes, or several if they have many pixels."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._cache: dict[tuple[int, int], tuple[int, ...]] = {}

    def __call__(self, images: SlottedImages, out: Tensor) -> None:
        """Place the images on the current stream of the batch's device."""
        from penstock.data.device.gpu_decode import placement_kernel as kernel

        if not images:
            return
        contiguous = [image.contiguous() for _, image in images]
        shapes = [(height, width) for _, height, width in (image.shape for image in contiguous)]
        targets = [(image.data_ptr(), slot) for image, (slot, _) in zip(contiguous, images, strict=True)]
        table = upload(
            np.hstack((targets, shapes, [self._geometry(shape) for shape in shapes]), dtype=np.int64), out.device
        )
        rows, columns = self._image.sides
        tiles, hwc = -(-rows * columns // kernel.TILE), self._image.layout == "HWC"
        with torch.cuda.device(out.device):
            for chunk in split_chunks([height * width for height, width in shapes], RESIZED_PIXELS):
                launch = kernel.place_kernel[((chunk.stop - chunk.start) * tiles,)]
                launch(
                    table[chunk], out, tiles, rows, columns, hwc, kernel.PARAMETERS, kernel.TILE, enable_fp_fusion=False
                )

    def _geometry(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """Return the geometry of an image of that shape as the kernel takes it."""
        if shape not in self._cache:
            if len(self._cache) >= CACHED_SHAPES:
                self._cache.clear()
            fit = self._image.geometry(*shape)
            self._cache[shape] = fit.height, fit.width, fit.top, fit.left, *fit.covered
        return self._cache[shape]


def place_by_shape(image: Image, images: SlottedImages, out: Tensor) -> None:
    """Place the images by torch's own kernels, on any device."""
    target = out.permute(0, 3, 1, 2) if image.layout == "HWC" else out
    by_shape = sorted((tuple(pixels.shape), slot, pixels) for slot, pixels in images)
    geometries = {shape: image.geometry(*shape[1:]) for shape in {shape for shape, _, _ in by_shape}}
    sizes = {shape: _max_pixels(shape, geometry) for shape, geometry in geometries.items()}
    for chunk in split_chunks([sizes[shape] for shape, _, _ in by_shape], RESIZED_PIXELS):
        groups = groupby(by_shape[chunk], itemgetter(0))
        resized = _resize(image, [(geometries[shape], [pixels for _, _, pixels in group]) for shape, group in groups])
        _store(target, [slot for _, slot, _ in by_shape[chunk]], resized)


def _resize(image: Image, groups: Sequence[tuple[FitGeometry, Sequence[Tensor]]]) -> Tensor:
    """Return uint8 (images, 3, *sides); the images of a group have one shape."""
    device = groups[0][1][0].device
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    new = torch.zeros if image.fit == "pad" else torch.empty
    canvas = new((sum(len(group) for _, group in groups), 3, *image.sides), dtype=dtype, device=device)
    begin = 0
    for fit, group in groups:
        pixels = torch.stack([*group]).to(dtype)
        if pixels.shape[2:] != (fit.height, fit.width):
            pixels = torch.nn.functional.interpolate(
                pixels, (fit.height, fit.width), mode="bilinear", antialias=True, align_corners=False
            )
        rows, columns = fit.covered
        end = begin + len(group)
        window = pixels[:, :, fit.top : fit.top + rows, fit.left : fit.left + columns]
        canvas[begin:end, :, :rows, :columns] = window
        begin = end
    return canvas.round_().to(torch.uint8)


def _max_pixels(shape: tuple[int, ...], fit: FitGeometry) -> int:
    """Return the pixels of an image where it is largest: decoded, resized or placed."""
    return max(shape[1] * shape[2], fit.height * fit.width, fit.out_height * fit.out_width)


def _store(target: Tensor, slots: Sequence[int], pixels: Tensor) -> None:
    begin, end = min(slots), max(slots) + 1
    if list(slots) == list(range(begin, end)):
        target[begin:end] = pixels
    else:
        target.index_copy_(0, upload(np.array(slots), target.device), pixels)
