"""The transform of a batch by a Triton kernel, in one or two launches, and the choice between it and torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
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
from penstock.data.device.transform.torch_transform import TorchTransform
from penstock.data.fields.gpu_transform import GpuTransform

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("penstock")

ApplyTransform = Callable[["Tensor", DrawnTransforms], "Tensor"]
"""A function from uint8 (samples, 3, height, width) in any memory layout to the declared size, dtype and layout."""


def choose_transform(transform: GpuTransform, pixels: Tensor, drawn: DrawnTransforms) -> ApplyTransform:
    """Return the kernel if it works on batches like this one on its device, else the transform by torch.

    The kernel is tried on this batch, which also compiles it if it is new.
    """
    if pixels.is_cuda:
        kernel = KernelTransform(transform, pixels.device)
        if kernel_works(lambda: kernel(pixels, drawn), instead="images are transformed by torch's operations"):
            return kernel
    return TorchTransform(transform, pixels.device)


def kernel_works(run: Callable[[], object], *, instead: str) -> bool:
    """Run a kernel once and return whether it works; if not, log what is done instead, and why."""
    try:
        run()
    except Exception as error:  # Triton is not installed, or lacks a compiler: errors of many kinds
        log.info("%s, because the Triton kernel does not work here: %s", instead, error)
        return False
    return True


class KernelTransform:
    """The whole transform in one launch on a GPU; in two if colours change, which needs the mean of each image."""

    def __init__(self, transform: GpuTransform, device: torch.device) -> None:
        self._transform = transform
        self._levels = upload(channel_levels(transform), device)

    def __call__(self, pixels: Tensor, drawn: DrawnTransforms) -> Tensor:
        """Transform on the current stream of the device; besides the result it needs a few numbers for each image."""
        from penstock.data.device.transform import transform_kernel as kernel

        out = allocate_output(self._transform, pixels)
        rows, columns = out.shape[2:]
        parameters = sample_parameters(drawn, (rows, columns))
        table = join_parameters(parameters)
        numbers = self._levels if table is None else upload(table, pixels.device)
        per_sample = 0 if table is None else table.shape[1]
        resized, _, flipped, coloured = (array is not None for array in parameters)
        layout = *pixels.stride(), *out.stride(), pixels.shape[3], rows, columns
        tiles = -(-rows * columns // kernel.TILE)

        def launch(sums: Tensor, target: Tensor, *, only_sums: bool) -> None:
            arguments = pixels, numbers, sums, self._levels, target, *layout, per_sample, resized, flipped, coloured
            kernel.transform_kernel[(len(pixels) * tiles,)](*arguments, only_sums, kernel.TILE, enable_fp_fusion=False)

        with torch.cuda.device(pixels.device):
            sums = self._levels
            if coloured:
                tile_sums = torch.empty((len(pixels), tiles, 3), dtype=torch.float32, device=pixels.device)
                launch(sums, tile_sums, only_sums=True)
                sums = tile_sums.sum(dim=1)  # atomic additions by the tiles would round differently in each run
            launch(sums, out, only_sums=False)
        return out
