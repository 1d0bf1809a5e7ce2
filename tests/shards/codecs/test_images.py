"""Images, sound and damaged, are decoded, encoded and shrunk, and scratch memory is reused."""

from __future__ import annotations

import io
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from penstock.errors import DecodeError, GuardError, SampleError, SettingError
from penstock.shards.codecs import decode_jpeg, encode_jpeg, shrink_jpeg
from penstock.shards.codecs.images import CACHE_LINE_BYTES, MAX_REUSED_BYTES, ScratchBuffer
from penstock.shards.guards import inspect_jpeg
from penstock.testing.images import make_image


def jpeg(mode: str = "RGB", height: int = 96, width: int = 160, **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(make_image(height, width, seed=5)).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def by_pillow(data: bytes, mode: str = "RGB") -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert(mode)).astype(int)


def segment(marker: int, content: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", 2 + len(content)) + content


EXIF = segment(0xE1, b"Exif\0\0" + b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0")
PROFILE = segment(0xE2, b"ICC_PROFILE\0\x01\x01" + bytes(100))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_every_colour_space_is_decoded_to_the_same_rgb_as_by_pillow(mode, progressive):
    data = jpeg(mode, progressive=progressive)
    pixels = decode_jpeg(data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (96, 160, 3)
    assert np.abs(pixels - by_pillow(data)).max() <= 2


def test_every_kind_of_buffer_is_decoded_and_slices_of_larger_ones_too():
    data = jpeg()
    whole = memoryview(b"before" + data + b"after")
    expected = decode_jpeg(data)
    for buffer in (bytearray(data), whole[6:-5], memoryview(bytearray(data))):
        assert np.array_equal(decode_jpeg(buffer), expected)


@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_divisor_shrinks_the_image_and_rounds_its_sides_up(divisor, mode):
    height, width = 97, 161
    pixels = decode_jpeg(jpeg(mode, height, width, quality=95), divisor=divisor)
    assert pixels.shape == (-(-height // divisor), -(-width // divisor), 3)
    whole = decode_jpeg(jpeg(mode, height, width, quality=95)).astype(int)
    rows, columns = height // divisor, width // divisor
    blocks = whole[: rows * divisor, : columns * divisor].reshape(rows, divisor, columns, divisor, 3)
    assert np.abs(pixels[:rows, :columns] - blocks.mean((1, 3))).mean() < 3


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:2:2", "4:4:4"])
def test_coarse_chroma_changes_colours_a_little_and_brightness_not(subsampling):
    data = jpeg(subsampling=subsampling, quality=95)
    fine, coarse = decode_jpeg(data).astype(float), decode_jpeg(data, coarse_chroma=True).astype(float)
    assert np.abs((fine - coarse) @ (0.299, 0.587, 0.114)).max() < 3
    assert np.abs(fine - coarse).mean() < 2
    assert np.array_equal(fine, coarse) == (subsampling == "4:4:4")
    assert np.array_equal(decode_jpeg(data, "L"), decode_jpeg(data, "L", coarse_chroma=True))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_sampling_factors_unknown_to_turbojpeg_are_decoded_by_pillow(mode):
    data = bytearray(jpeg(subsampling=0, height=61, width=67))
    frame = data.index(b"\xff\xc0")
    data[frame + 17] = 0x21  # the third component has more samples than the first two
    assert np.array_equal(decode_jpeg(data, mode).squeeze(), by_pillow(bytes(data), mode))
    for divisor in (2, 4, 8):
        assert decode_jpeg(data, mode, divisor=divisor).shape[:2] == (-(-61 // divisor), -(-67 // divisor))


def test_bytes_after_the_end_marker_are_accepted():
    assert np.array_equal(decode_jpeg(jpeg() + b"trailer"), decode_jpeg(jpeg()))


@pytest.mark.parametrize("stray", [b"junk", b"\0", b"\xff\0", b"\xff\xd3", b"ab\xff\0c\xff\x01\xff\xff"])
@pytest.mark.parametrize("before", [b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda"])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_stray_bytes_between_header_segments_do_not_change_the_image(stray, before, mode):
    data = jpeg(mode)
    segment_start = data.index(before)
    odd = data[:segment_start] + stray + data[segment_start:]
    assert np.array_equal(decode_jpeg(odd), by_pillow(data))
    assert np.array_equal(decode_jpeg(memoryview(odd), divisor=2), decode_jpeg(data, divisor=2))
    assert shrink_jpeg(odd, 50, "long", 90) == shrink_jpeg(data, 50, "long", 90)


def test_stray_bytes_that_were_a_scan_of_the_image_are_an_error():
    data = jpeg(progressive=True)
    scan = data.index(b"\xff\xda")
    with pytest.raises(DecodeError, match="Inconsistent progression"):
        decode_jpeg(data[:scan] + b"\x76" + data[scan + 1 :])  # the first scan has lost its marker


def damaged(data: bytes) -> bytes:
    """Remove the second half of the coded data, but not the end marker."""
    middle = (data.index(b"\xff\xda") + len(data)) // 2
    return data[:middle] + b"\xff\xd9"


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_an_image_with_a_gap_is_an_error_in_every_colour_space(mode, progressive):
    with pytest.raises(DecodeError, match="premature end") as caught:
        decode_jpeg(damaged(jpeg(mode, progressive=progressive)))
    assert caught.value.stage == "decode"
    assert caught.value.advice


def test_a_truncated_image_is_refused():
    data = jpeg()
    with pytest.raises(GuardError, match="cut short"):
        decode_jpeg(data[: len(data) // 2])


def test_an_image_above_pillow_s_own_limit_is_decoded(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert decode_jpeg(jpeg("CMYK")).shape == (96, 160, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_encoding_keeps_the_image_and_its_channels(channels):
    pixels = make_image(64, 80, seed=2)[:, :, :channels]
    data = encode_jpeg(pixels, 95)
    info = inspect_jpeg(data)
    assert (info.height, info.width, info.components, info.progressive) == (64, 80, channels, False)
    assert np.abs(by_pillow(data, "RGB" if channels == 3 else "L") - pixels.squeeze().astype(int)).mean() < 6


def test_a_view_that_is_not_contiguous_is_encoded_like_its_copy():
    pixels = make_image(64, 80, seed=2)
    assert encode_jpeg(pixels[::2, ::-1], 90) == encode_jpeg(pixels[::2, ::-1].copy(), 90)


@pytest.mark.parametrize("quality", [0, 101, -5])
def test_a_quality_outside_1_to_100_is_refused(quality):
    with pytest.raises(SettingError, match="quality"):
        encode_jpeg(make_image(8, 8, seed=1), quality)


@pytest.mark.parametrize(
    "array",
    [np.zeros((8, 8, 3)), np.zeros((8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8), np.zeros((0, 8, 3), np.uint8)],
)
def test_an_array_that_is_not_an_image_is_not_encoded(array):
    with pytest.raises(SampleError, match="is not an image"):
        encode_jpeg(array, 90)


def test_an_image_longer_than_jpeg_allows_is_not_encoded():
    with pytest.raises(SampleError, match="encoder failed"):
        encode_jpeg(np.zeros((1, 70_000, 3), np.uint8), 90)


@pytest.mark.parametrize(("size", "side"), [(160, "long"), (1000, "long"), (96, "short"), (1000, "short")])
def test_an_image_that_is_small_enough_keeps_its_bytes(size, side):
    data = jpeg()
    assert shrink_jpeg(data, size, side, 80) is data
    assert shrink_jpeg(memoryview(data), size, side, 80) == data


@pytest.mark.parametrize(
    ("height", "width", "size", "side", "expected"),
    [
        (96, 160, 80, "long", (48, 80)),
        (160, 96, 100, "long", (100, 60)),
        (96, 160, 50, "short", (50, 83)),
        (96, 160, 159, "long", (95, 159)),
        (100, 41, 10, "long", (10, 4)),
        (100, 45, 10, "long", (10, 5)),
        (300, 2, 30, "long", (30, 1)),
    ],
)
def test_shrinking_gives_the_exact_side_and_rounds_the_other_one(height, width, size, side, expected):
    info = inspect_jpeg(shrink_jpeg(jpeg(height=height, width=width), size, side, 80))
    assert (info.height, info.width) == expected


@pytest.mark.parametrize(("mode", "components"), [("L", 1), ("RGB", 3), ("CMYK", 3)])
def test_shrinking_keeps_greyscale_and_turns_cmyk_to_rgb(mode, components):
    assert inspect_jpeg(shrink_jpeg(jpeg(mode), 50, "long", 80)).components == components


def test_a_shrunk_image_is_close_to_the_original():
    data = jpeg(height=600, width=900, quality=95)
    small = by_pillow(shrink_jpeg(data, 256, "long", 95))
    with Image.open(io.BytesIO(data)) as image:
        reference = np.asarray(image.resize((256, 171), Image.Resampling.BOX)).astype(int)
    assert np.abs(small - reference).mean() < 3


def test_orientation_and_colour_profile_are_kept_when_shrinking():
    data = jpeg()
    shrunk = shrink_jpeg(data[:2] + EXIF + PROFILE + segment(0xFE, b"a comment") + data[2:], 50, "long", 80)
    with Image.open(io.BytesIO(shrunk)) as image:
        assert image.size == (50, 30)
        assert image.getexif()[0x0112] == 6
        assert image.info["icc_profile"] == bytes(100)
        assert "comment" not in image.info


def test_the_profile_of_a_cmyk_image_is_dropped_when_it_becomes_rgb():
    data = jpeg("CMYK")
    shrunk = shrink_jpeg(data[:2] + EXIF + PROFILE + data[2:], 50, "long", 80)
    with Image.open(io.BytesIO(shrunk)) as image:
        assert "icc_profile" not in image.info
        assert image.getexif()[0x0112] == 6


def test_a_side_of_zero_pixels_is_refused():
    with pytest.raises(SettingError, match="0 pixels"):
        shrink_jpeg(jpeg(), 0, "long", 80)


def test_damage_is_detected_when_shrinking():
    with pytest.raises(DecodeError):
        shrink_jpeg(damaged(jpeg()), 50, "long", 80)


def test_shrinking_sets_opencv_to_one_thread_and_importing_does_not():
    script = """
import cv2
cv2.setNumThreads(3)
from penstock.shards.codecs import encode_jpeg, shrink_jpeg
from penstock.testing.images import make_image
before = cv2.getNumThreads()
shrink_jpeg(encode_jpeg(make_image(64, 64, seed=1), 90), 10, "long", 90)
print(before, cv2.getNumThreads())
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["3", "1"]


@pytest.mark.parametrize("shape", [(1,), (5000,), (3, 700, 1001), (MAX_REUSED_BYTES + 1,)])
def test_a_scratch_buffer_begins_at_a_cache_line(shape):
    scratch = ScratchBuffer()
    for larger in (0, 1):  # the second time it may have to grow
        array = scratch.array((shape[0] + larger, *shape[1:]))
        assert array.ctypes.data % CACHE_LINE_BYTES == 0
        assert array.flags.c_contiguous


def test_smaller_arrays_reuse_the_same_memory():
    scratch = ScratchBuffer()
    first = scratch.array((100, 100))
    assert scratch.array((99, 3)).ctypes.data == first.ctypes.data


def test_a_very_large_buffer_is_not_kept():
    scratch = ScratchBuffer()
    kept = scratch.array((1000,))
    scratch.array((MAX_REUSED_BYTES + 1,))
    assert scratch.array((1000,)).ctypes.data == kept.ctypes.data
