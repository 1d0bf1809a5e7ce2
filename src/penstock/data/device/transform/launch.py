"""A batch finished by a kernel of ours: the whole of it in one or two launches, where Triton works."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from penstock.data.device.transform.apply import TorchTransform
from penstock.data.device.transform.draw import DrawnTransforms
from penstock.data.device.transform.kernel_args import as_one, columns_of, levels_of, room_for, sent
from penstock.data.fields.gpu_transform import GpuTransform

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("penstock")

ApplyTransform = Callable[["Tensor", DrawnTransforms], "Tensor"]
"""uint8 (samples, 3, height, width), however it lies, to the declared size, numbers and layout."""


def choose_transform(finish: GpuTransform, pixels: Tensor, drawn: DrawnTransforms) -> ApplyTransform:
    """For batches like this one, on its device: that is where the kernel is tried, and compiled if it is new."""
    if pixels.is_cuda:
        in_launches = KernelTransform(finish, pixels.device)
        try:
            in_launches(pixels, drawn)
        except Exception as error:  # Triton is not there, or lacks a compiler: errors of many kinds
            log.info("pictures are finished by torch, because a kernel for all of it does not work here: %s", error)
        else:
            return in_launches
    return TorchTransform(finish, pixels.device)


class KernelTransform:
    """On a card, all that is to be done in one launch; two if colours change, which depend on each picture's mean."""

    def __init__(self, finish: GpuTransform, device: torch.device) -> None:
        self._finish = finish
        self._levels = sent(levels_of(finish), device)

    def __call__(self, pixels: Tensor, drawn: DrawnTransforms) -> Tensor:
        """On the current stream of their device; what this takes beside the batch is some numbers for each picture."""
        from penstock.data.device.transform import kernel

        out = room_for(self._finish, pixels)
        rows, columns = out.shape[2:]
        told = columns_of(drawn, (rows, columns))
        table = as_one(told)
        numbers = self._levels if table is None else sent(table, pixels.device)
        per_picture = 0 if table is None else table.shape[1]
        resized, _, flipped, coloured = (column is not None for column in told)
        lying = *pixels.stride(), *out.stride(), pixels.shape[3], rows, columns
        tiles = -(-rows * columns // kernel.TILE)

        def launch(sums: Tensor, target: Tensor, *, only_sums: bool) -> None:
            given = pixels, numbers, sums, self._levels, target, *lying, per_picture, resized, flipped, coloured
            kernel.transform_kernel[(len(pixels) * tiles,)](*given, only_sums, kernel.TILE, enable_fp_fusion=False)

        with torch.cuda.device(pixels.device):
            sums = self._levels
            if coloured:
                of_tiles = torch.empty((len(pixels), tiles, 3), dtype=torch.float32, device=pixels.device)
                launch(sums, of_tiles, only_sums=True)
                sums = of_tiles.sum(dim=1)  # not added up by the tiles themselves: whoever comes first would round last
            launch(sums, out, only_sums=False)
        return out
