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
"""Of pixels as float32, worked on at a time: what this takes beside the batch is a few times that..."""
OF_A_CARD = 256
"""...and on a card such a part of its memory, if that is more: each portion costs the host all launches anew."""


class Finisher:
    """Finishes batch after batch, all on one device and stream: what is the same for all is sent once."""

    def __init__(self, finish: Finish, device: torch.device) -> None:
        self._finish = finish
        mean, std = np.array(finish.mean, np.float32), np.array(finish.std, np.float32)
        scale, shift, self._grey = sent(np.stack((1 / (255 * std), -mean / std, GREY.astype(np.float32))), device)
        self._scale, self._shift = scale.view(1, 3, 1, 1), shift.view(1, 3, 1, 1)
        self._portion_bytes = _portion_bytes(device)

    @torch.no_grad()
    def __call__(self, pixels: Tensor, drawn: Drawn) -> Tensor:
        """uint8 (samples, 3, height, width), however it lies, to the declared size, numbers and layout."""
        finish = self._finish
        samples, _, height, width = pixels.shape
        wanted = finish.out((height, width))
        lying = torch.channels_last if finish.layout == "channels_last" else torch.contiguous_format
        dtype: torch.dtype = getattr(torch, finish.dtype)
        out = torch.empty((samples, 3, *wanted), dtype=dtype, device=pixels.device, memory_format=lying)
        boxes, flips, colours = _chances(drawn, pixels.device)
        step = max(1, self._portion_bytes // (12 * max(height * width, wanted[0] * wanted[1])))
        with torch.autocast(pixels.device.type, enabled=False):  # the training's, which would halve our numbers
            for begin in range(0, samples, step):
                part = slice(begin, begin + step)
                changed = pixels[part]
                if boxes is not None:
                    changed = resample(changed.float(), boxes[part], None if flips is None else flips[part], wanted)
                elif flips is not None:
                    changed = torch.where(flips[part, None, None, None], changed.flip(3), changed)
                if colours is not None:
                    changed = coloured(changed.float(), colours[part], self._grey)
                torch.addcmul(self._shift, changed.float(), self._scale, out=out[part])
        return out


def coloured(pictures: Tensor, colours: Tensor, grey: Tensor) -> Tensor:
    """Each picture's colours through its own matrix, and its mean grey added; what leaves 0…255 is cut off."""
    samples, _, height, width = pictures.shape
    flat = pictures.reshape(samples, 3, height * width)
    lift = colours[:, 9] * (flat.mean(dim=2) * grey).sum(dim=1)
    mixed = torch.baddbmm(lift[:, None, None], colours[:, :9].reshape(samples, 3, 3), flat)
    return mixed.clamp_(0, 255).view(samples, 3, height, width)


def _chances(drawn: Drawn, device: torch.device) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Boxes, flips and colours on the device, sent as one: to pin and to send costs the host more than the numbers."""
    flips = None if drawn.flips is None else drawn.flips.astype(np.float32)[:, None]
    columns = [column for column in (drawn.boxes, flips, drawn.colours) if column is not None]
    if not columns:
        return None, None, None
    parts = iter(sent(np.hstack(columns), device).split([column.shape[1] for column in columns], dim=1))
    boxes = None if drawn.boxes is None else next(parts)
    flipped = None if flips is None else next(parts)[:, 0] > 0
    return boxes, flipped, None if drawn.colours is None else next(parts)


def _portion_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return PORTION_BYTES
    card = torch.cuda.get_device_properties(device)
    return max(PORTION_BYTES, int(card.total_memory) // OF_A_CARD)


def sent(numbers: NDArray[Any] | None, device: torch.device) -> Any:
    """A few numbers on the device, without waiting for it: from pinned memory, which torch keeps for us."""
    if numbers is None:
        return None
    tensor = torch.from_numpy(numbers)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
