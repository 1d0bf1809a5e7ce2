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


def resample(
    pictures: Tensor, rows: Tensor, columns: Tensor, middles: tuple[tuple[Tensor, Tensor], ...], dtype: torch.dtype
) -> Tensor:
    """Pictures (samples, 3, height, width), however they lie, to the size of which `middles` has the rows and columns.

    `rows` and `columns` are `axis` of each; `middles` are `middles_of` the given and the wanted ones, of each. The
    products are of `dtype`. A sample's matrix is the same for its three colours: they lie one below the other for the
    columns, and are taken in turn for the rows, because a matrix that is used three times at once is copied twice.
    """
    samples, colours, height, width = pictures.shape
    down, across = weights(rows, *middles[0], dtype), weights(columns, *middles[1], dtype)
    planes = pictures.to(dtype, memory_format=torch.contiguous_format).view(samples, colours * height, width)
    narrowed = torch.bmm(planes, across.transpose(1, 2)).view(samples, colours, height, -1)
    out = narrowed.new_empty((samples, colours, down.shape[1], across.shape[1]))
    for colour in range(colours):
        torch.bmm(down, narrowed[:, colour], out=out[:, colour])
    return out


def middles_of(count: int, device: torch.device) -> Tensor:
    """Of so many rows."""
    return torch.arange(count, device=device, dtype=torch.float32) + 0.5


def weights(axes: Tensor, given: Tensor, wanted: Tensor, dtype: torch.dtype) -> Tensor:
    """(samples, wanted, given): how much each given row counts in each wanted one. A row outside the window, nothing.

    A triangle around the place that the wanted row's middle comes from: as wide as two given rows, or as two wanted
    ones where those are wider. Places need float32; what lies so near that it counts can be told in less.
    """
    begins, ends, origins, slopes, steepness = axes[:, :, None].unbind(1)
    centres = torch.addcmul(origins, wanted, slopes)[:, :, None]
    apart = torch.empty((*centres.shape[:2], len(given)), dtype=dtype, device=axes.device)
    torch.sub(given, centres, out=apart)
    found = apart.abs_().mul_(steepness[:, :, None]).add_(1).clamp_(min=0)
    inside = (given > begins) & (given < ends)
    found *= inside[:, None]
    return found.div_(found.sum(dim=2, keepdim=True, dtype=torch.float32))
