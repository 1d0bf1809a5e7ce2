"""The numbers that a device needs to transform a batch, computed on the host, and the memory for the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.data.device.transform.draw import GREY, DrawnTransforms
from penstock.data.fields.gpu_transform import GpuTransform

if TYPE_CHECKING:
    from torch import Tensor

Float32s = NDArray[np.float32]

PER_AXIS = 5
"""Numbers that describe the resampling of one axis of one sample: see `axis_parameters`."""


def channel_levels(transform: GpuTransform) -> Float32s:
    """Return (2, 3): the factor of each colour channel, and what is added to it after the multiplication."""
    mean, std = np.array(transform.mean, np.float32), np.array(transform.std, np.float32)
    return np.stack((1 / (255 * std), -mean / std))


def allocate_output(transform: GpuTransform, pixels: Tensor) -> Tensor:
    """Allocate the tensor for the transformed pixels, in the declared size, dtype and memory layout."""
    samples, colours, *sides = pixels.shape
    memory_format = torch.channels_last if transform.layout == "channels_last" else torch.contiguous_format
    shape = samples, colours, *transform.output_size((sides[0], sides[1]))
    dtype = getattr(torch, transform.dtype)
    return torch.empty(shape, dtype=dtype, device=pixels.device, memory_format=memory_format)


def sample_parameters(drawn: DrawnTransforms, size: tuple[int, int]) -> list[Float32s | None]:
    """Return the parameters of each sample for rows, columns, flips and colours; None for each that is not needed.

    Rows and columns are the `axis_parameters` of the window, mirrored if drawn so; flips are separate only where there
    is no window. Colours are a matrix, row by row, and the factor of each colour's mean that is added to all of them.
    """
    parameters: list[Float32s | None] = [None] * 4
    if drawn.boxes is not None:
        top, left, height, width = drawn.boxes.T
        parameters[:2] = axis_parameters(top, height, size[0]), axis_parameters(left, width, size[1], drawn.flips)
    elif drawn.flips is not None:
        parameters[2] = drawn.flips.astype(np.float32)[:, None]
    if drawn.colours is not None:
        parameters[3] = np.hstack((drawn.colours[:, :9], drawn.colours[:, 9:] * GREY), dtype=np.float32)
    return parameters


def axis_parameters(starts: Float32s, lengths: Float32s, size: int, flips: NDArray[np.bool_] | None = None) -> Float32s:
    """Return (samples, PER_AXIS): start and end of the window, origin and slope, and the negative inverse of the reach.

    The centre p of an output row lies at origin + slope · p of the input. Input rows have no weight if they are farther
    from it than the reach, the height of an input row or of an output row, whichever is larger. Columns likewise.
    """
    ends, scales = starts + lengths, lengths / size
    flipped = np.zeros(len(starts), bool) if flips is None else flips
    origins, slopes = np.where(flipped, ends, starts), np.where(flipped, -scales, scales)
    return np.stack((starts, ends, origins, slopes, -1 / np.maximum(scales, 1)), axis=1, dtype=np.float32)


def join_parameters(parameters: Sequence[Float32s | None]) -> Float32s | None:
    """Join the arrays side by side, so that they are sent in one copy: starting a copy costs more than its size."""
    present = [array for array in parameters if array is not None]
    return np.hstack(present) if present else None


def upload(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """Copy a few numbers to the device without waiting for it, from pinned memory that torch's allocator keeps."""
    tensor = torch.from_numpy(numbers)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
