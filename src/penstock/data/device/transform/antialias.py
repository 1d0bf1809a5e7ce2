"""Antialiased pixels as kernels of ours make them, in Triton, which comes with torch for CUDA."""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

TILE = 256
"""Pixels of the output that are made together; neighbours, so that they read the same rows."""


@triton.jit
def around(
    picture, apart, row_apart, column_apart, down, across, reach_down, reach_across, top, bottom, left, right, wanted
):
    """Red, green and blue around places of a uint8 picture, whose colours, rows and columns lie so far apart.

    The mean of the pixels around the place, weighted by a triangle that reaches as far as is said, which is a pixel or
    more: torch's `interpolate(..., antialias=True)`. Nothing outside of top, bottom, left and right counts; places that
    are not wanted are black.

    To be compiled without fusing products into sums: places are worked out twice, for loads and for weights, where the
    compiler lays them out differently, and fused in one of them only, a place may be the neighbour's.
    """
    steepness_down, steepness_across = 1 / reach_down, 1 / reach_across
    first_down = tl.maximum((down - reach_down + 0.5).to(tl.int32), top)
    first_across = tl.maximum((across - reach_across + 0.5).to(tl.int32), left)
    red = tl.zeros(down.shape, tl.float32)
    green = tl.zeros(down.shape, tl.float32)
    blue = tl.zeros(down.shape, tl.float32)
    total = tl.zeros(down.shape, tl.float32)
    for further_down in range((2 * reach_down).to(tl.int32) + 1):
        row = first_down + further_down
        weight_down = tl.maximum(1 - tl.abs(row + 0.5 - down) * steepness_down, 0.0)
        weight_down = tl.where(row < bottom, weight_down, 0.0)
        for further_across in range((2 * reach_across).to(tl.int32) + 1):
            column = first_across + further_across
            weight = tl.maximum(1 - tl.abs(column + 0.5 - across) * steepness_across, 0.0)
            weight = tl.where(column < right, weight, 0.0) * weight_down
            counts = wanted & (weight > 0)
            source = picture + row * row_apart + column * column_apart
            red = tl.fma(weight, tl.load(source, counts, 0).to(tl.float32), red)
            green = tl.fma(weight, tl.load(source + apart, counts, 0).to(tl.float32), green)
            blue = tl.fma(weight, tl.load(source + 2 * apart, counts, 0).to(tl.float32), blue)
            total += weight
    share = tl.where(wanted, 1 / tl.where(wanted, total, 1.0), 0.0)
    return red * share, green * share, blue * share
