"""What a device is told of a batch that is to be finished, and the room it gets for the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.data.device.transform.draw import GREY, DrawnTransforms
from penstock.data.device.transform.resample import axis
from penstock.data.fields.gpu_transform import GpuTransform

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]


def levels_of(finish: GpuTransform) -> Floats:
    """(2, 3): what each colour is multiplied by, and what is then added."""
    mean, std = np.array(finish.mean, np.float32), np.array(finish.std, np.float32)
    return np.stack((1 / (255 * std), -mean / std))


def room_for(finish: GpuTransform, pixels: Tensor) -> Tensor:
    """For what comes of these."""
    samples, colours, *sides = pixels.shape
    lying = torch.channels_last if finish.layout == "channels_last" else torch.contiguous_format
    shape = samples, colours, *finish.output_size((sides[0], sides[1]))
    return torch.empty(shape, dtype=getattr(torch, finish.dtype), device=pixels.device, memory_format=lying)


def columns_of(drawn: DrawnTransforms, wanted: tuple[int, int]) -> list[Floats | None]:
    """What a device is told of each sample, if there is anything to tell: rows, columns, flips, colours.

    Rows and columns are `axis` of the window, mirrored if that is so; flips stand alone where there is no window.
    Colours are a matrix, row by row, and how much of each colour's mean is added to all of them.
    """
    columns: list[Floats | None] = [None] * 4
    if drawn.boxes is not None:
        top, left, height, width = drawn.boxes.T
        columns[:2] = axis(top, height, wanted[0]), axis(left, width, wanted[1], drawn.flips)
    elif drawn.flips is not None:
        columns[2] = drawn.flips.astype(np.float32)[:, None]
    if drawn.colours is not None:
        columns[3] = np.hstack((drawn.colours[:, :9], drawn.colours[:, 9:] * GREY), dtype=np.float32)
    return columns


def as_one(columns: Sequence[Floats | None]) -> Floats | None:
    """Side by side: sending costs the host more than the numbers do."""
    some = [column for column in columns if column is not None]
    return np.hstack(some) if some else None


def sent(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """A few numbers on the device, without waiting for it: from pinned memory, which torch keeps for us."""
    tensor = torch.from_numpy(numbers)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
