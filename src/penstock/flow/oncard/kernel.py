"""Pictures of any shapes resized into their slots in one launch: a kernel in Triton, which comes with torch for CUDA.

Real datasets have pictures of dozens of shapes in a batch. Told shape by shape, a card gets hundreds of small things to
do, each of which takes the host longer to ask for than the card to do it.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

TILE = 256
"""Pixels of the output that are made together; neighbours, so that they read the same rows."""
NUMBERS = 10
"""Of each picture: address, slot, height and width as it is, height and width it is resized to, top and left that are
cut off, rows and columns of the slot that it covers."""


@triton.jit
def place_all(table, out, tiles, out_rows, out_columns, HWC: tl.constexpr, NUMBERS: tl.constexpr, TILE: tl.constexpr):
    """Each picture is uint8 (3, height, width); what of its slot it does not cover becomes black.

    A pixel is the mean of those around the place it comes from, weighted by a triangle that is as wide as two of them,
    or as two of its own where those are wider: torch's `interpolate(..., antialias=True)`.

    To be compiled without fusing products into sums: places are worked out twice, for loads and for weights, where the
    compiler lays them out differently, and fused in one of them only, a place may be the neighbour's.
    """
    number, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    numbers = table + number * NUMBERS
    picture = tl.load(numbers).to(tl.pointer_type(tl.uint8))
    slot = tl.load(numbers + 1)
    height, width = tl.load(numbers + 2).to(tl.int32), tl.load(numbers + 3).to(tl.int32)
    scale_down = height.to(tl.float32) / tl.load(numbers + 4).to(tl.float32)
    scale_across = width.to(tl.float32) / tl.load(numbers + 5).to(tl.float32)
    top, left = tl.load(numbers + 6).to(tl.int32), tl.load(numbers + 7).to(tl.int32)
    rows, columns = tl.load(numbers + 8).to(tl.int32), tl.load(numbers + 9).to(tl.int32)

    at = tile * TILE + tl.arange(0, TILE)
    row, column = at // out_columns, at % out_columns
    inside = at < out_rows * out_columns
    covered = inside & (row < rows) & (column < columns)

    reach_down, reach_across = tl.maximum(scale_down, 1.0), tl.maximum(scale_across, 1.0)
    steepness_down, steepness_across = 1 / reach_down, 1 / reach_across
    middle_down = (row + top + 0.5) * scale_down
    middle_across = (column + left + 0.5) * scale_across
    first_down = tl.maximum((middle_down - reach_down + 0.5).to(tl.int32), 0)
    first_across = tl.maximum((middle_across - reach_across + 0.5).to(tl.int32), 0)
    red = tl.zeros((TILE,), tl.float32)
    green = tl.zeros((TILE,), tl.float32)
    blue = tl.zeros((TILE,), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for down in range((2 * reach_down).to(tl.int32) + 1):
        from_row = first_down + down
        weight_down = tl.maximum(1 - tl.abs(from_row + 0.5 - middle_down) * steepness_down, 0.0)
        weight_down = tl.where(from_row < height, weight_down, 0.0)
        for across in range((2 * reach_across).to(tl.int32) + 1):
            from_column = first_across + across
            weight = tl.maximum(1 - tl.abs(from_column + 0.5 - middle_across) * steepness_across, 0.0)
            weight = tl.where(from_column < width, weight, 0.0) * weight_down
            counts = covered & (weight > 0)
            source = picture + from_row * width + from_column
            red = tl.fma(weight, tl.load(source, counts, 0).to(tl.float32), red)
            green = tl.fma(weight, tl.load(source + height * width, counts, 0).to(tl.float32), green)
            blue = tl.fma(weight, tl.load(source + 2 * height * width, counts, 0).to(tl.float32), blue)
            total += weight

    share = tl.where(covered, 1 / tl.where(covered, total, 1.0), 0.0)
    pixels = out_rows * out_columns
    target = out + slot * (3 * pixels)
    target += at * 3 if HWC else at
    apart = 1 if HWC else pixels
    half = tl.where(covered, 0.5, 0.0)  # of a level: what follows cuts off
    tl.store(target, (red * share + half).to(tl.uint8), inside)
    tl.store(target + apart, (green * share + half).to(tl.uint8), inside)
    tl.store(target + 2 * apart, (blue * share + half).to(tl.uint8), inside)
