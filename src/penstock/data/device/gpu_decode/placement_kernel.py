"""Pictures of any shapes resized into their slots in one launch: a kernel in Triton, which comes with torch for CUDA.

Real datasets have pictures of dozens of shapes in a batch. Told shape by shape, a card gets hundreds of small things to
do, each of which takes the host longer to ask for than the card to do it.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

from penstock.data.device.transform.antialias import TILE as TILE
from penstock.data.device.transform.antialias import around

NUMBERS = 10
"""Of each picture: address, slot, height and width as it is, height and width it is resized to, top and left that are
cut off, rows and columns of the slot that it covers."""


@triton.jit
def place_kernel(
    table, out, tiles, out_rows, out_columns, HWC: tl.constexpr, NUMBERS: tl.constexpr, TILE: tl.constexpr
):
    """Each picture is uint8 (3, height, width); what of its slot it does not cover becomes black.

    A pixel reaches as far as one of the picture's, or as one of its own where those are wider.
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
    down, across = (row + top + 0.5) * scale_down, (column + left + 0.5) * scale_across
    reach_down, reach_across = tl.maximum(scale_down, 1.0), tl.maximum(scale_across, 1.0)
    red, green, blue = around(
        picture, height * width, width, 1, down, across, reach_down, reach_across, 0, height, 0, width, covered
    )

    pixels = out_rows * out_columns
    target = out + slot * (3 * pixels)
    target += at * 3 if HWC else at
    apart = 1 if HWC else pixels
    half = tl.where(covered, 0.5, 0.0)  # of a level: what follows cuts off
    tl.store(target, (red + half).to(tl.uint8), inside)
    tl.store(target + apart, (green + half).to(tl.uint8), inside)
    tl.store(target + 2 * apart, (blue + half).to(tl.uint8), inside)
