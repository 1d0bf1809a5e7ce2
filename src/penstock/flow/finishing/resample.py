"""Windows of pictures, resized with antialiasing and mirrored, each sample's own, in two products of matrices.

A resized row is a weighted sum of rows, so resizing is a matrix; each sample has one for its rows and one for its
columns. That is no work at all for a card, needs no loop over samples, and gives what torch's own
`interpolate(..., antialias=True)` makes of the window. What a card is slow at is being asked: whatever depends on a
sample alone is worked out before it is sent, so that the matrices take a dozen calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]

PER_AXIS = 5
"""Numbers that say of one sample what becomes of its rows, or columns: see `axis`."""


def axis(starts: Floats, lengths: Floats, wanted: int, flips: NDArray[np.bool_] | None = None) -> Floats:
    """(samples, PER_AXIS): where the window begins and ends, where the wanted rows come from, and how far they reach.

    The middle of a wanted row at p comes from origin + slope · p; what lies as far from that as a given row is long,
    or a wanted one if that is longer, counts no more.
    """
    ends, scales = starts + lengths, lengths / wanted
    flipped = np.zeros(len(starts), bool) if flips is None else flips
    origins, slopes = np.where(flipped, ends, starts), np.where(flipped, -scales, scales)
    return np.stack((starts, ends, origins, slopes, -1 / np.maximum(scales, 1)), axis=1, dtype=np.float32)


def resample(pictures: Tensor, rows: Tensor, columns: Tensor, middles: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
    """Float pictures (samples, 3, height, width) to the size of which `middles` has the rows and columns.

    `rows` and `columns` are `axis` of each; `middles` are `middles_of` the given and the wanted ones, of each.
    """
    down, across = weights(rows, *middles[0]), weights(columns, *middles[1])
    return torch.matmul(torch.matmul(down[:, None], pictures), across[:, None].transpose(2, 3))


def middles_of(count: int, device: torch.device) -> Tensor:
    """Of so many rows."""
    return torch.arange(count, device=device, dtype=torch.float32) + 0.5


def weights(axes: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
    """(samples, wanted, given): how much each given row counts in each wanted one. A row outside the window, nothing.

    A triangle around the place that the wanted row's middle comes from: as wide as two given rows, or as two wanted
    ones where those are wider.
    """
    begins, ends, origins, slopes, steepness = axes[:, :, None].unbind(1)
    apart = (given - torch.addcmul(origins, wanted, slopes)[:, :, None]).abs_()
    found = apart.mul_(steepness[:, :, None]).add_(1).clamp_(min=0)
    inside = (given > begins) & (given < ends)
    found *= inside[:, None]
    return found.div_(found.sum(dim=2, keepdim=True))
