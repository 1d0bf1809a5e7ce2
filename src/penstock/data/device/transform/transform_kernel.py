"""A Triton kernel that transforms a batch of images in one launch, or two where colours depend on each image's mean.

Written as single operations of torch, the transform is three dozen kernels, each of which reads and writes the batch
again, and costs the host more time to launch than the GPU to run.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

from penstock.data.device.transform.antialias import TILE as TILE
from penstock.data.device.transform.antialias import antialiased


@triton.jit
def transform_kernel(
    pixels,
    numbers,
    sums,
    levels,
    out,
    SAMPLE_STRIDE: tl.constexpr,
    COLOUR_STRIDE: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    COLUMN_STRIDE: tl.constexpr,
    OUT_SAMPLE_STRIDE: tl.constexpr,
    OUT_COLOUR_STRIDE: tl.constexpr,
    OUT_ROW_STRIDE: tl.constexpr,
    OUT_COLUMN_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    PER_SAMPLE: tl.constexpr,
    RESIZED: tl.constexpr,
    FLIPPED: tl.constexpr,
    COLOURED: tl.constexpr,
    ONLY_SUMS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Transform uint8 images; `numbers` has the `sample_parameters` of each, `levels` three factors and three addends.

    With ONLY_SUMS, the sum of each colour in each tile is stored instead; the second launch takes the `sums` per image.
    """
    tiles: tl.constexpr = (OUT_ROWS * OUT_COLUMNS + TILE - 1) // TILE
    sample, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    image = pixels + sample.to(tl.int64) * SAMPLE_STRIDE
    params = numbers + sample * PER_SAMPLE
    index = tile * TILE + tl.arange(0, TILE)
    row, column = index // OUT_COLUMNS, index % OUT_COLUMNS
    inside = index < OUT_ROWS * OUT_COLUMNS

    if RESIZED:
        top, bottom = tl.load(params).to(tl.int32), tl.load(params + 1).to(tl.int32)
        left, right = tl.load(params + 5).to(tl.int32), tl.load(params + 6).to(tl.int32)
        row_slope, column_slope = tl.load(params + 3), tl.load(params + 8)
        row_centre = tl.load(params + 2) + row_slope * (row + 0.5)
        column_centre = tl.load(params + 7) + column_slope * (column + 0.5)
        row_reach, column_reach = tl.maximum(tl.abs(row_slope), 1.0), tl.maximum(tl.abs(column_slope), 1.0)
        red, green, blue = antialiased(
            image,
            COLOUR_STRIDE,
            ROW_STRIDE,
            COLUMN_STRIDE,
            row_centre,
            column_centre,
            row_reach,
            column_reach,
            top,
            bottom,
            left,
            right,
            inside,
        )
        params += 10
    else:
        if FLIPPED:
            source_column = tl.where(tl.load(params) > 0, WIDTH - 1 - column, column)
            params += 1
        else:
            source_column = column
        source = image + row * ROW_STRIDE + source_column * COLUMN_STRIDE
        red = tl.load(source, inside, 0).to(tl.float32)
        green = tl.load(source + COLOUR_STRIDE, inside, 0).to(tl.float32)
        blue = tl.load(source + 2 * COLOUR_STRIDE, inside, 0).to(tl.float32)

    if ONLY_SUMS:
        target = out + tl.program_id(0) * 3
        tl.store(target, tl.sum(red))
        tl.store(target + 1, tl.sum(green))
        tl.store(target + 2, tl.sum(blue))
    else:
        if COLOURED:
            image_sums = sums + sample * 3
            lift = tl.load(params + 9) * tl.load(image_sums) + tl.load(params + 10) * tl.load(image_sums + 1)
            lift = (lift + tl.load(params + 11) * tl.load(image_sums + 2)) / (OUT_ROWS * OUT_COLUMNS)
            mixed_red = tl.load(params) * red + tl.load(params + 1) * green + tl.load(params + 2) * blue + lift
            mixed_green = tl.load(params + 3) * red + tl.load(params + 4) * green + tl.load(params + 5) * blue + lift
            mixed_blue = tl.load(params + 6) * red + tl.load(params + 7) * green + tl.load(params + 8) * blue + lift
            red = tl.minimum(tl.maximum(mixed_red, 0.0), 255.0)
            green = tl.minimum(tl.maximum(mixed_green, 0.0), 255.0)
            blue = tl.minimum(tl.maximum(mixed_blue, 0.0), 255.0)
        target = out + sample.to(tl.int64) * OUT_SAMPLE_STRIDE + row * OUT_ROW_STRIDE + column * OUT_COLUMN_STRIDE
        dtype: tl.constexpr = out.dtype.element_ty
        red = red * tl.load(levels) + tl.load(levels + 3)
        green = green * tl.load(levels + 1) + tl.load(levels + 4)
        blue = blue * tl.load(levels + 2) + tl.load(levels + 5)
        tl.store(target, red.to(dtype), inside)
        tl.store(target + OUT_COLOUR_STRIDE, green.to(dtype), inside)
        tl.store(target + 2 * OUT_COLOUR_STRIDE, blue.to(dtype), inside)
