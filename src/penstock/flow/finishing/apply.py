"""From a batch of bytes to what a model eats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.flow.fields.finish import Finish
from penstock.flow.finishing.draw import GREY, Drawn
from penstock.flow.finishing.resample import resample

if TYPE_CHECKING:
    from torch import Tensor

PORTION_BYTES = 64 << 20
"""Of pixels as float32, worked on at a time: what this takes on the card beside the batch is a few times that."""


@torch.no_grad()
def finished(pixels: Tensor, finish: Finish, drawn: Drawn) -> Tensor:
    """uint8 (samples, 3, height, width), however it lies, to the declared size, numbers and layout."""
    samples, _, height, width = pixels.shape
    wanted = finish.out((height, width))
    lying = torch.channels_last if finish.layout == "channels_last" else torch.contiguous_format
    dtype: torch.dtype = getattr(torch, finish.dtype)
    out = torch.empty((samples, 3, *wanted), dtype=dtype, device=pixels.device, memory_format=lying)
    scale, shift = _normalising(finish, pixels.device)
    chances = [sent(column, pixels.device) for column in (drawn.boxes, drawn.flips, drawn.colours)]
    step = max(1, PORTION_BYTES // (12 * max(height * width, wanted[0] * wanted[1])))
    with torch.autocast(pixels.device.type, enabled=False):  # the training's, which would halve our numbers
        for begin in range(0, samples, step):
            part = slice(begin, begin + step)
            changed = _changed(pixels[part], wanted, *(None if each is None else each[part] for each in chances))
            torch.addcmul(shift, changed.float(), scale, out=out[part])
    return out


def _changed(
    pixels: Tensor, wanted: tuple[int, int], boxes: Tensor | None, flips: Tensor | None, colours: Tensor | None
) -> Tensor:
    if boxes is not None:
        pixels = resample(pixels.float(), boxes, flips, wanted)
    elif flips is not None:
        pixels = torch.where(flips[:, None, None, None], pixels.flip(3), pixels)
    return pixels if colours is None else coloured(pixels.float(), colours)


def coloured(pictures: Tensor, colours: Tensor) -> Tensor:
    """Each picture's colours through its own matrix, and its mean grey added; what leaves 0…255 is cut off."""
    samples, _, height, width = pictures.shape
    flat = pictures.reshape(samples, 3, height * width)
    grey = sent(GREY.astype(np.float32), pictures.device)
    lift = colours[:, 9] * (flat.mean(dim=2) * grey).sum(dim=1)
    mixed = torch.baddbmm(lift[:, None, None], colours[:, :9].reshape(samples, 3, 3), flat)
    return mixed.clamp_(0, 255).view(samples, 3, height, width)


def _normalising(finish: Finish, device: torch.device) -> tuple[Tensor, Tensor]:
    """What a pixel of each colour is multiplied by, and what is added then."""
    mean, std = np.array(finish.mean, np.float32), np.array(finish.std, np.float32)
    scale, shift = sent(np.stack((1 / (255 * std), -mean / std)), device)
    return scale.view(1, 3, 1, 1), shift.view(1, 3, 1, 1)


def sent(numbers: NDArray[Any] | None, device: torch.device) -> Any:
    """A few numbers on the device, without waiting for it: from pinned memory, which torch keeps for us."""
    if numbers is None:
        return None
    tensor = torch.from_numpy(numbers)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
