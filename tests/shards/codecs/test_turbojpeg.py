"""JPEGs with harmless defects are decoded like those without; those that lose pixels are refused."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image

from penstock.errors import DecodeError
from penstock.shards.codecs import decode_jpeg, turbojpeg
from penstock.testing.images import make_image

SOS, END = b"\xff\xda", b"\xff\xd9"
RESTART = re.compile(rb"\xff[\xd0-\xd7]")
PADDING = [b"\0", b"\0" * 5, b"\xaa" * 9, b"\0" * 300]


def jpeg(mode: str = "RGB", height: int = 96, width: int = 160, **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(make_image(height, width, seed=5)).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def coded_start(data: bytes) -> int:
    """Return where the coded pixels of the first scan begin."""
    at = data.index(SOS)
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def damaged(data: bytes) -> bytes:
    """Remove the second half of the coded data, but not the end marker."""
    return data[: (coded_start(data) + len(data)) // 2] + END


def with_padding(data: bytes, padding: bytes) -> bytes:
    """Put padding before each restart marker."""
    start = coded_start(data)
    return data[:start] + RESTART.sub(lambda found: padding + found[0], data[start:])


def with_scan_parameters(data: bytes, parameters: bytes = b"\x00\x3f\x08") -> bytes:
    end = coded_start(data)
    return data[: end - 3] + parameters + data[end:]


# -- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("parameters", [b"\x00\x00\x00", b"\x00\x3f\x08", b"\x3f\x00\x11"])
def test_invalid_scan_parameters_of_a_sequential_image_do_not_matter(mode, parameters):
    data = with_scan_parameters(jpeg(mode), parameters)
    assert np.array_equal(decode_jpeg(data), decode_jpeg(jpeg(mode)))
    assert np.array_equal(decode_jpeg(data), by_pillow(data))
    assert np.array_equal(decode_jpeg(data, divisor=4), decode_jpeg(jpeg(mode), divisor=4))


def test_invalid_scan_parameters_of_a_progressive_image_are_an_error():
    with pytest.raises(DecodeError, match="progressive"):
        decode_jpeg(with_scan_parameters(jpeg(progressive=True), b"\x00\x3f\x08"))


def test_a_newer_jfif_revision_is_accepted():
    data = jpeg()
    assert np.array_equal(decode_jpeg(data[:11] + b"\x02" + data[12:]), decode_jpeg(data))


def test_a_newer_jfif_revision_of_a_progressive_image_is_accepted():
    data = jpeg(progressive=True)
    assert np.array_equal(decode_jpeg(data[:11] + b"\x02" + data[12:]), decode_jpeg(data))


def test_a_broken_colour_profile_is_accepted():
    data = jpeg()
    content = b"ICC_PROFILE\0\x01\x03" + bytes(30)
    broken = b"\xff\xe2" + (2 + len(content)).to_bytes(2, "big") + content
    assert np.array_equal(decode_jpeg(data[:20] + broken + data[20:]), decode_jpeg(data))


@pytest.mark.parametrize("change", [with_scan_parameters, lambda data: data[:11] + b"\x02" + data[12:]])
def test_a_harmless_defect_does_not_hide_lost_pixels(change):
    with pytest.raises(DecodeError, match="premature end"):
        decode_jpeg(change(damaged(jpeg())))


def test_several_harmless_defects_are_accepted_together():
    data = jpeg(restart_marker_blocks=3)
    odd = with_padding(with_scan_parameters(data[:11] + b"\x02" + data[12:]), b"\0\0\0")
    assert np.array_equal(decode_jpeg(odd[:-2] + bytes(40) + END), decode_jpeg(data))


def test_tables_that_a_motion_jpeg_leaves_out_are_the_standard_ones():
    data = jpeg(restart_marker_blocks=4)
    without = re.sub(rb"\xff\xc4\0.{29}|\xff\xc4\0.{179}", b"", data[: coded_start(data)], flags=re.DOTALL)
    frame = with_padding(without + data[coded_start(data) :], b"\0\0\0\0\0\0\0\0\0")
    assert b"\xff\xc4" not in frame
    assert np.array_equal(decode_jpeg(frame), decode_jpeg(data))


# -- restart intervals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:2:2", "4:4:4"])
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("blocks", [1, 7, 1000])
def test_padding_before_restart_markers_does_not_change_the_image(mode, subsampling, padding, blocks):
    data = jpeg(mode, 50, 90, subsampling=subsampling, restart_marker_blocks=blocks)
    padded = with_padding(data, padding)
    assert np.array_equal(decode_jpeg(padded), decode_jpeg(data))
    assert np.array_equal(decode_jpeg(padded), by_pillow(padded))


def test_a_gap_in_one_interval_is_an_error_however_much_the_others_are_padded():
    data = with_padding(jpeg(restart_marker_blocks=5), b"\0" * 20)
    markers = [found.start() for found in RESTART.finditer(data, coded_start(data))]
    for number in (1, len(markers) // 2, len(markers) - 1):
        begin, end = markers[number - 1] + 2, markers[number]
        with pytest.raises(DecodeError, match=r"extraneous bytes|premature end"):
            decode_jpeg(data[: begin + (end - 20 - begin) // 2] + data[end - 20 :])


def test_a_missing_interval_is_an_error():
    data = with_padding(jpeg(restart_marker_blocks=5), b"\0" * 20)
    first, second = [found.start() for found in RESTART.finditer(data, coded_start(data))][:2]
    with pytest.raises(DecodeError):
        decode_jpeg(data[:first] + data[second:])


def test_restart_markers_out_of_order_are_an_error():
    data = with_padding(jpeg(restart_marker_blocks=5), b"\0" * 20)
    second, third = [found.start() for found in RESTART.finditer(data, coded_start(data))][1:3]
    odd = bytearray(data)
    odd[second + 1], odd[third + 1] = data[third + 1], data[second + 1]
    with pytest.raises(DecodeError):
        decode_jpeg(odd)


def test_pixels_that_are_left_over_before_a_restart_marker_are_an_error():
    rng = np.random.default_rng(0)
    pixels = bytes(rng.integers(0, 255, 300, np.uint8).tolist())
    with pytest.raises(DecodeError, match="extraneous bytes before marker 0xd"):
        decode_jpeg(with_padding(jpeg(restart_marker_blocks=5), pixels))


def test_padding_in_very_many_intervals_is_refused_before_they_are_decoded(monkeypatch):
    monkeypatch.setattr(turbojpeg, "MAX_INTERVALS", 3)
    with pytest.raises(DecodeError, match="extraneous"):
        decode_jpeg(with_padding(jpeg(restart_marker_blocks=5), b"\0" * 20))


def test_padding_in_the_intervals_of_a_progressive_image_is_refused():
    with pytest.raises(DecodeError, match="extraneous"):
        decode_jpeg(with_padding(jpeg(progressive=True, restart_marker_blocks=5), b"\0" * 20))


# -- the end of the image ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [*PADDING, b"\x0e\xd4\x69", b"\xff" * 100, b"\0" * 5000])
@pytest.mark.parametrize("progressive", [False, True])
def test_padding_before_the_end_marker_does_not_change_the_image(padding, progressive):
    data = jpeg(progressive=progressive)
    assert np.array_equal(decode_jpeg(data[:-2] + padding + END), decode_jpeg(data))


def test_pixels_that_are_left_over_at_the_end_are_an_error():
    # What torchvision's bad_huffman.jpg does: wrong tables, by which all blocks take fewer bytes than there are.
    data, other = jpeg(quality=95), jpeg(quality=95, height=32)
    with pytest.raises(DecodeError, match="extraneous bytes before marker 0xd9"):
        decode_jpeg(other[: coded_start(other)] + data[coded_start(data) :])


def test_a_gap_before_padding_at_the_end_is_an_error():
    data = jpeg(restart_marker_rows=1)
    at = data.index(b"\xff\xd1")
    with pytest.raises(DecodeError, match="premature end"):
        decode_jpeg(data[: at - 30] + data[at:-2] + bytes(9) + END)
