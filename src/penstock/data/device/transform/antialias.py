"""The antialiased resampling that both of our Triton kernels share; Triton comes with torch for CUDA."""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

TILE = 256
"""Output pixels that one program makes; neighbours, so that they read the same rows."""


@triton.jit
def antialiased(
    image,
    colour_stride,
    row_stride,
    column_stride,
    row_centre,
    column_centre,
    row_reach,
    column_reach,
    top,
    bottom,
    left,
    right,
    mask,
):
    """Return red, green and blue of a uint8 image around the given centres.

    Each is the mean of the pixels around a centre, weighted by a triangle that extends as far as the reach, which is
    one pixel or more, as in torch's `interpolate(..., antialias=True)`. Pixels outside of top, bottom, left and right
    have no weight; the result is black outside of the mask.

    This must be compiled without fusing multiplications and additions: the centres are computed twice, for the loads
    and for the weights, which the compiler lays out differently. If only one of them is fused, a centre may be that of
    the neighbouring pixel.
    """
    row_slope, column_slope = 1 / row_reach, 1 / column_reach
    first_row = tl.maximum((row_centre - row_reach + 0.5).to(tl.int32), top)
    first_column = tl.maximum((column_centre - column_reach + 0.5).to(tl.int32), left)
    red = tl.zeros(row_centre.shape, tl.float32)
    green = tl.zeros(row_centre.shape, tl.float32)
    blue = tl.zeros(row_centre.shape, tl.float32)
    total = tl.zeros(row_centre.shape, tl.float32)
    for row_step in range((2 * row_reach).to(tl.int32) + 1):
        row = first_row + row_step
        row_weight = tl.maximum(1 - tl.abs(row + 0.5 - row_centre) * row_slope, 0.0)
        row_weight = tl.where(row < bottom, row_weight, 0.0)
        for column_step in range((2 * column_reach).to(tl.int32) + 1):
            column = first_column + column_step
            weight = tl.maximum(1 - tl.abs(column + 0.5 - column_centre) * column_slope, 0.0)
            weight = tl.where(column < right, weight, 0.0) * row_weight
            counts = mask & (weight > 0)
            source = image + row * row_stride + column * column_stride
            red = tl.fma(weight, tl.load(source, counts, 0).to(tl.float32), red)
            green = tl.fma(weight, tl.load(source + colour_stride, counts, 0).to(tl.float32), green)
            blue = tl.fma(weight, tl.load(source + 2 * colour_stride, counts, 0).to(tl.float32), blue)
            total += weight
    scale = tl.where(mask, 1 / tl.where(mask, total, 1.0), 0.0)
    return red * scale, green * scale, blue * scale
