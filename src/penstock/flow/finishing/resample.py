"""Windows of pictures, resized with antialiasing and mirrored, each sample's own, in two products of matrices.

A resized row is a weighted sum of rows, so resizing is a matrix; each sample has one for its rows and one for its
columns. That is no work at all for a card, needs no loop over samples, and gives what torch's own
`interpolate(..., antialias=True)` makes of the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def resample(pictures: Tensor, boxes: Tensor, flips: Tensor | None, size: tuple[int, int]) -> Tensor:
    """Float pictures (samples, 3, height, width) to (samples, 3, *size); `boxes` as in `Drawn`, on the same device."""
    samples, colours, height, width = pictures.shape
    rows = weights(boxes[:, 0], boxes[:, 2], height, size[0], None)
    columns = weights(boxes[:, 1], boxes[:, 3], width, size[1], flips)
    shorter = torch.matmul(rows[:, None], pictures)
    return torch.matmul(shorter, columns[:, None].transpose(2, 3)).view(samples, colours, *size)


def weights(starts: Tensor, lengths: Tensor, given: int, wanted: int, flips: Tensor | None) -> Tensor:
    """(samples, wanted, given): how much each given row counts in each wanted one. A row outside the window, nothing.

    A triangle around the place that the wanted row's middle comes from: as wide as two given rows, or as two wanted
    ones where those are wider.
    """
    places = torch.arange(wanted, device=starts.device, dtype=torch.float32).expand(len(starts), wanted)
    if flips is not None:
        places = torch.where(flips[:, None], wanted - 1 - places, places)
    scales = (lengths / wanted)[:, None]
    middles = starts[:, None] + (places + 0.5) * scales
    rows = torch.arange(given, device=starts.device, dtype=torch.float32)
    apart = (rows + 0.5 - middles[:, :, None]).abs() / scales.clamp(min=1)[:, :, None]
    inside = (rows >= starts[:, None]) & (rows < (starts + lengths)[:, None])
    found = (1 - apart).clamp_(min=0) * inside[:, None]
    return found / found.sum(dim=2, keepdim=True)
