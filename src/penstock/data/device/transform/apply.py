"""From a batch of bytes to what a model eats, by torch: on the CPU, and on a card where our kernel does not work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.data.device.transform.draw import DrawnTransforms
from penstock.data.device.transform.kernel_args import as_one, columns_of, levels_of, room_for, sent
from penstock.data.device.transform.resample import middles_of, resample
from penstock.data.fields.gpu_transform import GpuTransform

if TYPE_CHECKING:
    from torch import Tensor

PORTION_BYTES = 64 << 20
"""Of pixels as float32, worked on at a time: what this takes beside the batch is a few times that..."""
OF_A_CARD = 256
"""...and on a card such a part of its memory, if that is more: each portion costs the host all launches anew."""


class TorchTransform:
    """Batch after batch, all on one device and stream: what is the same for all is sent once."""

    def __init__(self, finish: GpuTransform, device: torch.device) -> None:
        self._finish = finish
        scale, shift = sent(levels_of(finish), device)
        self._scale, self._shift = scale.view(1, 3, 1, 1), shift.view(1, 3, 1, 1)
        self._working = working_dtype(finish, device)
        self._portion_bytes = _portion_bytes(device)
        self._middles: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, pixels: Tensor, drawn: DrawnTransforms) -> Tensor:
        """In portions."""
        out = room_for(self._finish, pixels)
        samples, _, height, width = pixels.shape
        wanted = out.shape[2], out.shape[3]
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


def _chances(drawn: DrawnTransforms, wanted: tuple[int, int], device: torch.device) -> list[Tensor | None]:
    """`columns_of` these, on the device."""
    columns = columns_of(drawn, wanted)
    table = as_one(columns)
    if table is None:
        return [None] * 4
    widths = [column.shape[1] for column in columns if column is not None]
    parts = iter(torch.split(sent(table, device), widths, dim=1))
    return [None if column is None else next(parts) for column in columns]


def working_dtype(finish: GpuTransform, device: torch.device) -> torch.dtype:
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
