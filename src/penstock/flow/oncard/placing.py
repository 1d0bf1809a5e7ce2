"""Decoded pictures into their slots of a batch: resized with antialiasing, in few calls for many of them.

Every call of the card is a chance for another thread of the interpreter to go first. So pictures of one shape are
resized together, and what comes of all shapes is rounded and put into the batch together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.flow.fields.fit import Placement
from penstock.flow.fields.image import Image
from penstock.flow.finishing.apply import sent
from penstock.flow.oncard.portions import cut

if TYPE_CHECKING:
    from torch import Tensor

RESIZED_PIXELS = 1 << 24
"""Resized at a time, before or after, whichever is more: some 0.2 GB of the card's memory, 0.3 GB at most. And what the
decoder has to do for the next pictures waits behind it: with twice as many, decoding took an eighth longer."""


def place(image: Image, pictures: Sequence[tuple[int, Tensor]], out: Tensor) -> None:
    """uint8 (3, height, width) of any shapes, each with its slot."""
    target = out.permute(0, 3, 1, 2) if image.layout == "HWC" else out
    alike = sorted((tuple(picture.shape), slot, picture) for slot, picture in pictures)  # no two have one slot
    places = {shape: image.placed(*shape[1:]) for shape in {shape for shape, _, _ in alike}}
    pixels = {shape: _pixels(shape, at) for shape, at in places.items()}
    for piece in cut([pixels[shape] for shape, _, _ in alike], RESIZED_PIXELS):
        groups = groupby(alike[piece], itemgetter(0))
        of_shape = [(places[shape], [picture for _, _, picture in same]) for shape, same in groups]
        _put(target, [slot for _, slot, _ in alike[piece]], _resized(image, of_shape))


def _resized(image: Image, groups: Sequence[tuple[Placement, Sequence[Tensor]]]) -> Tensor:
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


def _pixels(shape: tuple[int, ...], at: Placement) -> int:
    """At its largest."""
    return max(shape[1] * shape[2], at.height * at.width, at.out_height * at.out_width)


def _put(target: Tensor, slots: Sequence[int], pixels: Tensor) -> None:
    begin, end = min(slots), max(slots) + 1
    if list(slots) == list(range(begin, end)):
        target[begin:end] = pixels
    else:
        target.index_copy_(0, sent(np.array(slots), target.device), pixels)
