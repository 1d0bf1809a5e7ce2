"""Decoded pictures into their slots of a batch: resized with antialiasing, in few calls for many of them.

Every call of the card is a chance for another thread of the interpreter to go first. So one launch does pictures of all
shapes, where Triton is there. Elsewhere those of one shape are resized together, and what comes of all shapes is
rounded and put into the batch together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.data.device.gpu_decode.decode_chunks import split_chunks
from penstock.data.device.transform.kernel_args import sent
from penstock.data.fields.image import FitGeometry, Image

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("penstock")

RESIZED_PIXELS = 1 << 24
"""Resized at a time, before or after, whichever is more: shape by shape that takes some 0.2 GB of the card's memory,
0.3 GB at most. And what the decoder has to do for the next pictures waits behind it."""
SHAPES_KEPT = 1 << 14
"""Of which it is remembered where they go."""

Slotted = Sequence[tuple[int, "Tensor"]]
"""uint8 (3, height, width) of any shapes, each with its slot; no two have one."""
PlaceImages = Callable[[Slotted, "Tensor"], None]
"""Into a batch."""


def choose_placement(image: Image, device: torch.device) -> PlaceImages:
    """In one launch if that works on the device; it is tried, which also has it compiled before the first batch."""
    if device.type == "cuda":
        at_once = KernelPlacement(image)
        try:
            picture = torch.zeros((3, *image.sides), dtype=torch.uint8, device=device)
            at_once([(0, picture)], torch.empty_like(picture))
        except Exception as error:  # Triton is not there, or lacks a compiler: errors of many kinds
            log.info("pictures are placed shape by shape, because one launch for all does not work here: %s", error)
        else:
            return at_once
    return partial(place_by_shape, image)


class KernelPlacement:
    """Whatever their shapes; several if they have many pixels."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def __call__(self, pictures: Slotted, out: Tensor) -> None:
        """On the current stream of the batch's device."""
        from penstock.data.device.gpu_decode import placement_kernel as kernel

        if not pictures:
            return
        whole = [picture.contiguous() for _, picture in pictures]
        shapes = [(height, width) for _, height, width in (picture.shape for picture in whole)]
        own = [(picture.data_ptr(), slot) for picture, (slot, _) in zip(whole, pictures, strict=True)]
        table = sent(np.hstack((own, shapes, [self._where(shape) for shape in shapes]), dtype=np.int64), out.device)
        rows, columns = self._image.sides
        tiles, hwc = -(-rows * columns // kernel.TILE), self._image.layout == "HWC"
        with torch.cuda.device(out.device):
            for piece in split_chunks([height * width for height, width in shapes], RESIZED_PIXELS):
                launch = kernel.place_kernel[((piece.stop - piece.start) * tiles,)]
                launch(
                    table[piece], out, tiles, rows, columns, hwc, kernel.NUMBERS, kernel.TILE, enable_fp_fusion=False
                )

    def _where(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """What the kernel has to know of a picture of that shape."""
        if shape not in self._known:
            if len(self._known) >= SHAPES_KEPT:
                self._known.clear()
            at = self._image.geometry(*shape)
            self._known[shape] = at.height, at.width, at.top, at.left, *at.covered
        return self._known[shape]


def place_by_shape(image: Image, pictures: Slotted, out: Tensor) -> None:
    """By torch's own kernels, on any device."""
    target = out.permute(0, 3, 1, 2) if image.layout == "HWC" else out
    alike = sorted((tuple(picture.shape), slot, picture) for slot, picture in pictures)
    places = {shape: image.geometry(*shape[1:]) for shape in {shape for shape, _, _ in alike}}
    pixels = {shape: _pixels(shape, at) for shape, at in places.items()}
    for piece in split_chunks([pixels[shape] for shape, _, _ in alike], RESIZED_PIXELS):
        groups = groupby(alike[piece], itemgetter(0))
        of_shape = [(places[shape], [picture for _, _, picture in same]) for shape, same in groups]
        _put(target, [slot for _, slot, _ in alike[piece]], _resized(image, of_shape))


def _resized(image: Image, groups: Sequence[tuple[FitGeometry, Sequence[Tensor]]]) -> Tensor:
    """uint8 (pictures, 3, *sides); those of a group are of one shape."""
    device = groups[0][1][0].device
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    new = torch.zeros if image.fit == "pad" else torch.empty
    canvas = new((sum(len(same) for _, same in groups), 3, *image.sides), dtype=dtype, device=device)
    begin = 0
    for at, same in groups:
        numbers = torch.stack([*same]).to(dtype)
        if numbers.shape[2:] != (at.height, at.width):
            numbers = torch.nn.functional.interpolate(
                numbers, (at.height, at.width), mode="bilinear", antialias=True, align_corners=False
            )
        rows, columns = at.covered
        end = begin + len(same)
        window = numbers[:, :, at.top : at.top + rows, at.left : at.left + columns]
        canvas[begin:end, :, :rows, :columns] = window
        begin = end
    return canvas.round_().to(torch.uint8)


def _pixels(shape: tuple[int, ...], at: FitGeometry) -> int:
    """At its largest."""
    return max(shape[1] * shape[2], at.height * at.width, at.out_height * at.out_width)


def _put(target: Tensor, slots: Sequence[int], pixels: Tensor) -> None:
    begin, end = min(slots), max(slots) + 1
    if list(slots) == list(range(begin, end)):
        target[begin:end] = pixels
    else:
        target.index_copy_(0, sent(np.array(slots), target.device), pixels)
