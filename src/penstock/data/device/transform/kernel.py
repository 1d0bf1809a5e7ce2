"""A batch of pictures finished in one launch, or two where colours depend on a picture's own mean: kernels in Triton.

Told operation by operation, a card gets three dozen things to do, each of which reads the batch and writes it again,
and takes the host longer to ask for than the card to do it.
"""

# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import triton
import triton.language as tl

from penstock.data.device.transform.antialias import TILE as TILE
from penstock.data.device.transform.antialias import around


@triton.jit
def transform_kernel(
    pixels,
    numbers,
    sums,
    levels,
    out,
    SAMPLE_APART: tl.constexpr,
    COLOUR_APART: tl.constexpr,
    ROW_APART: tl.constexpr,
    COLUMN_APART: tl.constexpr,
    OUT_SAMPLE_APART: tl.constexpr,
    OUT_COLOUR_APART: tl.constexpr,
    OUT_ROW_APART: tl.constexpr,
    OUT_COLUMN_APART: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_ROWS: tl.constexpr,
    OUT_COLUMNS: tl.constexpr,
    PER_PICTURE: tl.constexpr,
    RESIZED: tl.constexpr,
    FLIPPED: tl.constexpr,
    COLOURED: tl.constexpr,
    ONLY_SUMS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Pictures are uint8, `numbers` what `columns_of` has of each, `levels` three scales and three shifts.

    With ONLY_SUMS, what is stored is each tile's sum of each colour; `sums` are then those of each picture.
    """
    tiles: tl.constexpr = (OUT_ROWS * OUT_COLUMNS + TILE - 1) // TILE
    sample, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    picture = pixels + sample.to(tl.int64) * SAMPLE_APART
    own = numbers + sample * PER_PICTURE
    at = tile * TILE + tl.arange(0, TILE)
    row, column = at // OUT_COLUMNS, at % OUT_COLUMNS
    inside = at < OUT_ROWS * OUT_COLUMNS

    if RESIZED:
        top, bottom = tl.load(own).to(tl.int32), tl.load(own + 1).to(tl.int32)
        left, right = tl.load(own + 5).to(tl.int32), tl.load(own + 6).to(tl.int32)
        slope_down, slope_across = tl.load(own + 3), tl.load(own + 8)
        down = tl.load(own + 2) + slope_down * (row + 0.5)
        across = tl.load(own + 7) + slope_across * (column + 0.5)
        reach_down, reach_across = tl.maximum(tl.abs(slope_down), 1.0), tl.maximum(tl.abs(slope_across), 1.0)
        red, green, blue = around(
            picture,
            COLOUR_APART,
            ROW_APART,
            COLUMN_APART,
            down,
            across,
            reach_down,
            reach_across,
            top,
            bottom,
            left,
            right,
            inside,
        )
        own += 10
    else:
        if FLIPPED:
            column_from = tl.where(tl.load(own) > 0, WIDTH - 1 - column, column)
            own += 1
        else:
            column_from = column
        source = picture + row * ROW_APART + column_from * COLUMN_APART
        red = tl.load(source, inside, 0).to(tl.float32)
        green = tl.load(source + COLOUR_APART, inside, 0).to(tl.float32)
        blue = tl.load(source + 2 * COLOUR_APART, inside, 0).to(tl.float32)

    if ONLY_SUMS:
        target = out + tl.program_id(0) * 3
        tl.store(target, tl.sum(red))
        tl.store(target + 1, tl.sum(green))
        tl.store(target + 2, tl.sum(blue))
    else:
        if COLOURED:
            summed = sums + sample * 3
            lift = tl.load(own + 9) * tl.load(summed) + tl.load(own + 10) * tl.load(summed + 1)
            lift = (lift + tl.load(own + 11) * tl.load(summed + 2)) / (OUT_ROWS * OUT_COLUMNS)
            mixed_red = tl.load(own) * red + tl.load(own + 1) * green + tl.load(own + 2) * blue + lift
            mixed_green = tl.load(own + 3) * red + tl.load(own + 4) * green + tl.load(own + 5) * blue + lift
            mixed_blue = tl.load(own + 6) * red + tl.load(own + 7) * green + tl.load(own + 8) * blue + lift
            red = tl.minimum(tl.maximum(mixed_red, 0.0), 255.0)
            green = tl.minimum(tl.maximum(mixed_green, 0.0), 255.0)
            blue = tl.minimum(tl.maximum(mixed_blue, 0.0), 255.0)
        target = out + sample.to(tl.int64) * OUT_SAMPLE_APART + row * OUT_ROW_APART + column * OUT_COLUMN_APART
        number: tl.constexpr = out.dtype.element_ty
        red = red * tl.load(levels) + tl.load(levels + 3)
        green = green * tl.load(levels + 1) + tl.load(levels + 4)
        blue = blue * tl.load(levels + 2) + tl.load(levels + 5)
        tl.store(target, red.to(number), inside)
        tl.store(target + OUT_COLOUR_APART, green.to(number), inside)
        tl.store(target + 2 * OUT_COLOUR_APART, blue.to(number), inside)
