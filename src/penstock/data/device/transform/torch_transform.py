"""The transform of a batch by torch's operations: on the CPU, and on a GPU where our Triton kernel does not work.

Windows are resized with antialiasing, and mirrored, by two products of matrices: a resized row is a weighted sum of
rows, so each sample has one matrix for its rows and one for its columns. That is little work for a GPU, needs no loop
over samples, and equals torch's own `interpolate(..., antialias=True)` of the window. Launches are what is slow on a
GPU, so the numbers of a sample are computed on the host (`parameters`), and building the matrices takes a dozen
launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.data.device.transform.draw import DrawnTransforms
from penstock.data.device.transform.parameters import (
    allocate_output,
    channel_levels,
    join_parameters,
    sample_parameters,
    upload,
)
from penstock.data.fields.gpu_transform import GpuTransform

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_BYTES = 64 << 20
"""Bytes of pixels as float32 that are transformed at a time; the temporary memory is a few times that..."""
GPU_MEMORY_PARTS = 256
"""...and on a GPU this part of its memory, if that is more: each chunk repeats all launches on the host."""


class TorchTransform:
    """The transform of batches that are all on one device and stream; what is the same for all is sent once."""

    def __init__(self, transform: GpuTransform, device: torch.device) -> None:
        self._transform = transform
        scale, shift = upload(channel_levels(transform), device)
        self._scale, self._shift = scale.view(1, 3, 1, 1), shift.view(1, 3, 1, 1)
        self._dtype = compute_dtype(transform, device)
        self._chunk_bytes = _chunk_bytes(device)
        self._centres: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, pixels: Tensor, drawn: DrawnTransforms) -> Tensor:
        """Transform uint8 (samples, 3, height, width), in any memory layout, chunk by chunk."""
        out = allocate_output(self._transform, pixels)
        samples, _, height, width = pixels.shape
        size = out.shape[2], out.shape[3]
        parameters = _upload_parameters(drawn, size, pixels.device)
        centres = self._centre_pairs(height, size[0]), self._centre_pairs(width, size[1])
        step = max(1, self._chunk_bytes // (12 * max(height * width, size[0] * size[1])))
        with torch.autocast(pixels.device.type, enabled=False):  # that of the training would reduce our precision
            for begin in range(0, samples, step):
                chunk = slice(begin, begin + step)
                rows, columns, flips, colours = (None if each is None else each[chunk] for each in parameters)
                changed = pixels[chunk]
                if rows is not None and columns is not None:
                    changed = resample(changed, rows, columns, centres, self._dtype)
                elif flips is not None:
                    changed = torch.where(flips[:, :, None, None] > 0, changed.flip(3), changed)
                if colours is not None:
                    changed = apply_colours(changed.to(self._dtype), colours.to(self._dtype))
                torch.addcmul(self._shift, changed, self._scale, out=out[chunk])
        return out

    def _centre_pairs(self, in_size: int, out_size: int) -> tuple[Tensor, Tensor]:
        for count in (in_size, out_size):
            if count not in self._centres:
                self._centres[count] = pixel_centres(count, self._scale.device)
        return self._centres[in_size], self._centres[out_size]


def resample(
    images: Tensor, rows: Tensor, columns: Tensor, centres: tuple[tuple[Tensor, Tensor], ...], dtype: torch.dtype
) -> Tensor:
    """Resize images (samples, 3, height, width), in any memory layout, to the output size of `centres`.

    `rows` and `columns` are the `axis_parameters` of each sample; `centres` are the `pixel_centres` of input and
    output, first of the rows, then of the columns. The products are computed in `dtype`. A sample's matrix is the same
    for its three colours: for the columns the colours are stacked, for the rows they are taken in turn, because a
    matrix that is used three times in one batched product is copied twice.
    """
    samples, colours, height, width = images.shape
    row_weights = resize_weights(rows, *centres[0], dtype)
    column_weights = resize_weights(columns, *centres[1], dtype)
    planes = images.to(dtype, memory_format=torch.contiguous_format).view(samples, colours * height, width)
    narrowed = torch.bmm(planes, column_weights.transpose(1, 2)).view(samples, colours, height, -1)
    out = narrowed.new_empty((samples, colours, row_weights.shape[1], column_weights.shape[1]))
    for colour in range(colours):
        torch.bmm(row_weights, narrowed[:, colour], out=out[:, colour])
    return out


def pixel_centres(count: int, device: torch.device) -> Tensor:
    """Return the centres of that many rows or columns."""
    return torch.arange(count, device=device, dtype=torch.float32) + 0.5


def resize_weights(axes: Tensor, in_centres: Tensor, out_centres: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (samples, out, in): the weight of each input row in each output row; 0 for a row outside of the window.

    The weights are a triangle around the centre of the output row, as wide as two input rows, or as two output rows if
    those are wider. Centres need float32; the distances that have a weight are small enough for less.
    """
    begins, ends, origins, slopes, steepness = axes[:, :, None].unbind(1)
    centres = torch.addcmul(origins, out_centres, slopes)[:, :, None]
    distances = torch.empty((*centres.shape[:2], len(in_centres)), dtype=dtype, device=axes.device)
    torch.sub(in_centres, centres, out=distances)
    weights = distances.abs_().mul_(steepness[:, :, None]).add_(1).clamp_(min=0)
    inside = (in_centres > begins) & (in_centres < ends)
    weights *= inside[:, None]
    return weights.div_(weights.sum(dim=2, keepdim=True, dtype=torch.float32))


def apply_colours(images: Tensor, colours: Tensor) -> Tensor:
    """Apply each image's colour matrix, add its share of the mean grey, and clamp the result to 0…255."""
    samples, _, height, width = images.shape
    flat = images.reshape(samples, 3, height * width)
    lift = torch.bmm(colours[:, None, 9:], flat.mean(dim=2, keepdim=True))
    mixed = torch.baddbmm(lift, colours[:, :9].reshape(samples, 3, 3), flat)
    return mixed.clamp_(0, 255).view(samples, 3, height, width)


def _upload_parameters(drawn: DrawnTransforms, size: tuple[int, int], device: torch.device) -> list[Tensor | None]:
    """Return the `sample_parameters` as tensors on the device, sent in one copy."""
    parameters = sample_parameters(drawn, size)
    table = join_parameters(parameters)
    if table is None:
        return [None] * 4
    widths = [array.shape[1] for array in parameters if array is not None]
    tensors = iter(torch.split(upload(table, device), widths, dim=1))
    return [None if array is None else next(tensors) for array in parameters]


def compute_dtype(transform: GpuTransform, device: torch.device) -> torch.dtype:
    """Return the dtype of the computation: float16 on a GPU, unless float32 is declared.

    Pixels are whole numbers up to 255, which float16 represents exactly; its rounding errors are a twentieth of a level
    on average, less than those of the final bfloat16. A GPU is many times faster at it, and the time is the training's.
    """
    return torch.float16 if device.type == "cuda" and transform.dtype != "float32" else torch.float32


def _chunk_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return CHUNK_BYTES
    properties = torch.cuda.get_device_properties(device)
    return max(CHUNK_BYTES, int(properties.total_memory) // GPU_MEMORY_PARTS)
