"""The compiled decoder: its pixels, what it leaves to the other decoders, and when it is used."""

import functools
import io
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image as Pillow

from penstock.shards.codecs import jpeg_window
from penstock.shards.codecs.jpeg_window import SWITCH, compiled_decoder, window_request
from penstock.testing import make_image

needs_compiled = pytest.mark.skipif(
    compiled_decoder() is None,
    reason="the compiled decoder is turned off, or not built: it needs libjpeg-turbo",
)
KINDS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 3},
    "grey": {},
}
"""Those that Pillow can write; "4:2:0" is what cameras and most tools write."""
SIZES = [(1, 1), (3, 70), (64, 48), (77, 131)]


@functools.cache
def jpeg(kind, height=77, width=131):
    image = Pillow.fromarray(make_image(height, width, 3))
    buffer = io.BytesIO()
    image.convert("L" if kind == "grey" else "RGB").save(buffer, "JPEG", quality=90, **KINDS[kind])
    return buffer.getvalue()


def decode(data, rows, columns, *, channels=3, out=None, **settings):
    """Return what the compiled decoder writes, or None if it leaves the image to others."""
    if out is None:
        out = np.full((rows[5], columns[5], channels), 99, np.uint8)
    return out if compiled_decoder()(data, out, *window_request(rows, columns, **settings)) else None


def whole(length, size=None):
    return (length, 0, length, size or length, 0, size or length)


def random_side(rng, length):
    """Return a window of that side, its size in the result, and a part of the result."""
    window = int(rng.integers(1, length + 1))
    size = int(rng.integers(1 + window // 25, 2 * window + 2))
    cut = int(rng.integers(0, size))
    start, count = int(rng.integers(0, length - window + 1)), int(rng.integers(1, size - cut + 1))
    return length, start, window, size, cut, count


def reference(data, rows, columns, mode="RGB"):
    """Return what Pillow makes of the window: decoded, cut out, resized with antialiasing, cut again."""
    with Pillow.open(io.BytesIO(data)) as opened:
        image = opened.convert(mode)
    _, top, height, out_height, cut_top, count_rows = rows
    _, left, width, out_width, cut_left, count_columns = columns
    cropped = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(cropped.resize((out_width, out_height), Pillow.Resampling.BILINEAR)).reshape(
        out_height, out_width, -1
    )
    return pixels[cut_top : cut_top + count_rows, cut_left : cut_left + count_columns]


def triangle(side, divisor):
    """Return the matrix that resizes one side of an image that was shrunk by the divisor, in exact numbers."""
    image, start, length, size, cut, count = side
    low, high = start // divisor, min(-(-(start + length) // divisor), -(-image // divisor))
    scale = length / (size * divisor)
    centres = start / divisor + (np.arange(cut, cut + count) + 0.5) * scale
    distances = np.abs(np.arange(-(-image // divisor)) + 0.5 - centres[:, None]) / max(scale, 1)
    weights = np.maximum(1 - distances, 0)
    weights[:, :low] = weights[:, high:] = 0
    return weights / weights.sum(axis=1, keepdims=True)


# -- pixels -----------------------------------------------------------------------------------------------------------


@needs_compiled
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_all_kinds_of_jpegs_are_those_of_pillow(kind, size):
    rng = np.random.default_rng(1)
    data = jpeg(kind, *size)
    for _ in range(40):
        rows, columns = (random_side(rng, length) for length in size)
        found = decode(data, rows, columns)
        assert np.abs(found.astype(int) - reference(data, rows, columns)).max() <= 2


@needs_compiled
@pytest.mark.parametrize("kind", KINDS)
def test_a_greyscale_result_is_that_of_pillow(kind):
    rng = np.random.default_rng(2)
    for _ in range(20):
        rows, columns = random_side(rng, 77), random_side(rng, 131)
        found = decode(jpeg(kind), rows, columns, channels=1)
        assert np.abs(found.astype(int) - reference(jpeg(kind), rows, columns, "L")).max() <= 2


@needs_compiled
@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["4:4:4", "4:2:0", "progressive"])
def test_an_image_that_libjpeg_shrinks_is_resized_by_the_exact_filter(kind, divisor):
    rng = np.random.default_rng(3)
    with Pillow.open(io.BytesIO(jpeg(kind))) as image:
        image.draft("RGB", (131 // divisor, 77 // divisor))
        shrunk = np.asarray(image.convert("RGB"))
    assert shrunk.shape == (-(-77 // divisor), -(-131 // divisor), 3)
    for _ in range(20):
        rows, columns = random_side(rng, 77), random_side(rng, 131)
        found = decode(jpeg(kind), rows, columns, divisor=divisor)
        expected = np.einsum("or,rcx,pc->opx", triangle(rows, divisor), shrunk, triangle(columns, divisor))
        assert np.abs(found - expected).max() <= 2


@needs_compiled
@pytest.mark.parametrize("size", [(77, 131), (40, 50)])
def test_every_layout_holds_the_same_pixels(size):
    rows, columns = whole(77, size[0]), whole(131, size[1])
    pixels = decode(jpeg("4:2:0"), rows, columns)
    planes = decode(jpeg("4:2:0"), rows, columns, out=np.empty((3, *size), np.uint8).transpose(1, 2, 0))
    swapped = decode(jpeg("4:2:0"), rows, columns, out=np.empty((*size, 3), np.uint8)[:, :, ::-1])
    sparse = decode(jpeg("4:2:0"), rows, columns, out=np.empty((2 * size[0], 3 * size[1], 3), np.uint8)[::2, ::3])
    for other in (planes, swapped, sparse):
        assert np.array_equal(other, pixels)


@needs_compiled
@pytest.mark.parametrize("columns", range(1, 40))
@pytest.mark.parametrize("size", [40, 17])
def test_nothing_beside_the_output_is_written(columns, size):
    side = (131, 0, size, size, 0, min(columns, size))
    for planes in (False, True):
        memory = np.full((3, 12, 60) if planes else (12, 60, 3), 99, np.uint8)
        rows_first = memory.transpose(1, 2, 0) if planes else memory
        place = rows_first[5:7, 7 : 7 + side[5]]
        found = decode(jpeg("4:2:0"), (77, 3, 2, 2, 0, 2), side, out=place).copy()
        assert np.array_equal(found, decode(jpeg("4:2:0"), (77, 3, 2, 2, 0, 2), side))
        place[...] = 99
        assert (memory == 99).all()


@needs_compiled
@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("size", [(77, 131), (30, 41), (77, 5)])
def test_a_mirrored_window_is_the_mirror_image_of_the_window(size, planes):
    rows, columns = (77, 0, 77, size[0], 0, size[0]), (131, 0, size[1], size[1], 0, size[1])
    out = np.empty((3, *size), np.uint8).transpose(1, 2, 0) if planes else None
    mirrored = decode(jpeg("4:2:0"), rows, columns, mirrored=True, out=out)
    assert np.array_equal(mirrored[:, ::-1], decode(jpeg("4:2:0"), rows, columns))


@needs_compiled
def test_threads_may_decode_at_the_same_time():
    rng = np.random.default_rng(4)
    requests = [(kind, random_side(rng, 77), random_side(rng, 131)) for kind in KINDS for _ in range(20)]
    expected = [decode(jpeg(kind), rows, columns) for kind, rows, columns in requests]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            found = threads.map(lambda request: decode(jpeg(request[0]), *request[1:]), requests)
            assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


# -- what is left to others -------------------------------------------------------------------------------------------


@needs_compiled
def test_data_that_is_cut_short_within_the_window_is_not_decoded():
    for kind in KINDS:
        data = jpeg(kind)
        assert decode(data, whole(77), whole(131)) is not None
        assert decode(data[: len(data) // 2], whole(77), whole(131)) is None
        assert decode(data[: len(data) // 2] + b"\xff\xd9", whole(77), whole(131)) is None


@needs_compiled
def test_damage_below_the_window_is_not_seen_in_a_sequential_jpeg():
    data = bytearray(jpeg("4:2:0"))
    data[-40:-2] = bytes(38)
    assert decode(bytes(data), whole(77), whole(131)) is None
    assert decode(bytes(data), (77, 0, 20, 20, 0, 20), whole(131)) is not None


@needs_compiled
def test_an_image_of_another_size_than_the_request_says_is_not_decoded():
    assert decode(jpeg("4:2:0"), whole(76), whole(131)) is None
    assert decode(jpeg("4:2:0"), whole(77), whole(132)) is None


@needs_compiled
def test_cmyk_and_very_large_reductions_are_not_decoded():
    buffer = io.BytesIO()
    Pillow.fromarray(make_image(32, 32, 1)).convert("CMYK").save(buffer, "JPEG")
    assert decode(buffer.getvalue(), whole(32), whole(32)) is None
    assert decode(jpeg("4:2:0"), whole(77, 2), whole(131)) is None


@needs_compiled
@pytest.mark.parametrize("change", [{"rows": (77, 70, 20, 20, 0, 20)}, {"rows": (77, 0, 0, 20, 0, 20)}])
def test_a_window_outside_the_image_is_not_decoded(change):
    assert decode(jpeg("4:2:0"), **{"rows": whole(77), "columns": whole(131), **change}) is None


@needs_compiled
def test_wrong_arguments_are_refused():
    decoder, request = compiled_decoder(), window_request(whole(77), whole(131))
    out = np.empty((77, 131, 3), np.uint8)
    with pytest.raises(ValueError, match="rows, columns, 1 or 3"):
        decoder(jpeg("4:2:0"), out[:-1], *request)
    with pytest.raises(ValueError, match="rows, columns, 1 or 3"):
        decoder(jpeg("4:2:0"), np.empty((77, 131, 3), np.uint16), *request)
    with pytest.raises(ValueError, match="divisor is 3"):
        decoder(jpeg("4:2:0"), out, *window_request(whole(77), whole(131), divisor=3))
    with pytest.raises(ValueError, match="out of range"):
        decoder(jpeg("4:2:0"), out, *request[:-1], -1)
    with pytest.raises(TypeError, match="17 arguments"):
        decoder(jpeg("4:2:0"), out)
    out.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        decoder(jpeg("4:2:0"), out, *request)


# -- whether it is used -----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh():
    """Let the decoder be searched for anew, here and in the next test."""
    compiled_decoder.cache_clear()
    yield
    compiled_decoder.cache_clear()


def test_the_variable_turns_the_compiled_decoder_off(fresh, monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    assert compiled_decoder() is None


def test_there_is_no_compiled_decoder_where_it_was_not_built(fresh, monkeypatch):
    monkeypatch.delattr(sys.modules["penstock"], "_decode", raising=False)
    monkeypatch.setitem(sys.modules, "penstock._decode", None)
    assert jpeg_window.compiled_decoder() is None
