"""From a batch of bytes to what a model eats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.flow.fields.finish import Finish
from penstock.flow.finishing.draw import GREY, Drawn
from penstock.flow.finishing.resample import axis, middles_of, resample

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
        scale, shift = sent(np.stack((1 / (255 * std), -mean / std)), device)
        self._scale, self._shift = scale.view(1, 3, 1, 1), shift.view(1, 3, 1, 1)
        self._working = working_dtype(finish, device)
        self._portion_bytes = _portion_bytes(device)
        self._middles: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, pixels: Tensor, drawn: Drawn) -> Tensor:
        """uint8 (samples, 3, height, width), however it lies, to the declared size, numbers and layout."""
        finish = self._finish
        samples, _, height, width = pixels.shape
        wanted = finish.out((height, width))
        lying = torch.channels_last if finish.layout == "channels_last" else torch.contiguous_format
        dtype: torch.dtype = getattr(torch, finish.dtype)
        out = torch.empty((samples, 3, *wanted), dtype=dtype, device=pixels.device, memory_format=lying)
        chances = _chances(drawn, wanted, pixels.device)
        middles = self._middles_of(height, wanted[0]), self._middles_of(width, wanted[1])
        step = max(1, self._portion_bytes // (12 * max(height * width, wanted[0] * wanted[1])))
        with torch.autocast(pixels.device.type, enabled=False):  # the training's, which would halve our numbers
            for begin in range(0, samples, step):
                part = slice(begin, begin + step)
                rows, columns, flips, colours = (None if each is None else each[part] for each in chances)
                changed = pixels[part]
                if rows is not None and columns is not None:
                    changed = resample(changed, rows, columns, middles, self._working)
                elif flips is not None:
                    changed = torch.where(flips[:, :, None, None] > 0, changed.flip(3), changed)
                if colours is not None:
                    changed = coloured(changed.to(self._working), colours.to(self._working))
                torch.addcmul(self._shift, changed, self._scale, out=out[part])
        return out

    def _middles_of(self, given: int, wanted: int) -> tuple[Tensor, Tensor]:
        for count in (given, wanted):
            if count not in self._middles:
                self._middles[count] = middles_of(count, self._scale.device)
        return self._middles[given], self._middles[wanted]


def coloured(pictures: Tensor, colours: Tensor) -> Tensor:
    """Each picture's colours through its own matrix, and its mean grey added; what leaves 0…255 is cut off."""
    samples, _, height, width = pictures.shape
    flat = pictures.reshape(samples, 3, height * width)
    lift = torch.bmm(colours[:, None, 9:], flat.mean(dim=2, keepdim=True))
    mixed = torch.baddbmm(lift, colours[:, :9].reshape(samples, 3, 3), flat)
    return mixed.clamp_(0, 255).view(samples, 3, height, width)


def _chances(drawn: Drawn, wanted: tuple[int, int], device: torch.device) -> list[Tensor | None]:
    """Rows, columns, flips and colours on the device, sent as one: that costs the host more than the numbers do."""
    columns: list[NDArray[np.float32] | None] = [None] * 4
    if drawn.boxes is not None:
        top, left, height, width = drawn.boxes.T
        columns[:2] = axis(top, height, wanted[0]), axis(left, width, wanted[1], drawn.flips)
    elif drawn.flips is not None:
        columns[2] = drawn.flips.astype(np.float32)[:, None]
    if drawn.colours is not None:
        columns[3] = np.hstack((drawn.colours[:, :9], drawn.colours[:, 9:] * GREY), dtype=np.float32)
    some = [column for column in columns if column is not None]
    if not some:
        return [None] * 4
    parts = iter(sent(np.hstack(some), device).split([column.shape[1] for column in some], dim=1))
    return [None if column is None else next(parts) for column in columns]


def working_dtype(finish: Finish, device: torch.device) -> torch.dtype:
    """What is computed in: on a card, half of float32 where no more is asked for.

    Pixels are whole numbers up to 255, which float16 has exactly; what it rounds is a twentieth of one of them in the
    mean, less than bfloat16 rounds afterwards. A card is many times faster at it, and it is the training's time.
    """
    return torch.float16 if device.type == "cuda" and finish.dtype != "float32" else torch.float32


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
