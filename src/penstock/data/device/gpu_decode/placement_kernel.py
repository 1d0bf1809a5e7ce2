"""A Triton kernel that resizes images of any shapes into their slots in one launch; Triton comes with torch for CUDA.

A batch of a real dataset has images of dozens of shapes. Placed shape by shape, they take hundreds of small kernels,
each of which costs the host more time to launch than the GPU to run.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

from penstock.data.device.transform.antialias import TILE as TILE
from penstock.data.device.transform.antialias import antialiased

PARAMETERS = 15
"""Numbers in the table for each image: address of the window's first pixel, slot, height and width of the window,
height and width after resizing, rows at the top and columns at the left that are cut off, rows and columns of the slot
that the image covers, the first row and column of these, whether the image is mirrored, pixels from one row of the
image to the next, and from one colour to the next."""


@triton.jit
def place_kernel(
    table,
    out,
    tiles,
    out_rows,
    out_columns,
    fill_red,
    fill_green,
    fill_blue,
    HWC: tl.constexpr,
    PARAMETERS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Resize a window of each uint8 (3, height, width) image into its slot; what it does not cover gets a fill colour.

    An output pixel is the mean of input pixels within one pixel of the input, or of the output where that is larger.
    """
    image_index, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    parameters = table + image_index * PARAMETERS
    image = tl.load(parameters).to(tl.pointer_type(tl.uint8))
    slot = tl.load(parameters + 1)
    height, width = tl.load(parameters + 2).to(tl.int32), tl.load(parameters + 3).to(tl.int32)
    row_scale = height.to(tl.float32) / tl.load(parameters + 4).to(tl.float32)
    column_scale = width.to(tl.float32) / tl.load(parameters + 5).to(tl.float32)
    cut_top, cut_left = tl.load(parameters + 6).to(tl.int32), tl.load(parameters + 7).to(tl.int32)
    rows, columns = tl.load(parameters + 8).to(tl.int32), tl.load(parameters + 9).to(tl.int32)
    top, left = tl.load(parameters + 10).to(tl.int32), tl.load(parameters + 11).to(tl.int32)
    mirrored = tl.load(parameters + 12).to(tl.int32)
    row_stride, colour_step = tl.load(parameters + 13).to(tl.int32), tl.load(parameters + 14).to(tl.int32)

    index = tile * TILE + tl.arange(0, TILE)
    row, column = index // out_columns - top, index % out_columns - left
    inside = index < out_rows * out_columns
    covered = inside & (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    column = tl.where(mirrored != 0, columns - 1 - column, column)
    row_centre, column_centre = (row + cut_top + 0.5) * row_scale, (column + cut_left + 0.5) * column_scale
    row_reach, column_reach = tl.maximum(row_scale, 1.0), tl.maximum(column_scale, 1.0)
    red, green, blue = antialiased(
        image,
        colour_step,
        row_stride,
        1,
        row_centre,
        column_centre,
        row_reach,
        column_reach,
        0,
        height,
        0,
        width,
        covered,
    )
    # half a level is added, because the conversion to uint8 truncates
    red = tl.where(covered, red + 0.5, fill_red)
    green = tl.where(covered, green + 0.5, fill_green)
    blue = tl.where(covered, blue + 0.5, fill_blue)

    pixels = out_rows * out_columns
    target = out + slot * (3 * pixels)
    target += index * 3 if HWC else index
    colour_stride = 1 if HWC else pixels
    tl.store(target, red.to(tl.uint8), inside)
    tl.store(target + colour_stride, green.to(tl.uint8), inside)
    tl.store(target + 2 * colour_stride, blue.to(tl.uint8), inside)
