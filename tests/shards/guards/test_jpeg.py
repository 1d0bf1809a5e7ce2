"""The JPEG guard reports an image's header, and refuses unsafe images before the decoder is called."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from penstock.errors import GuardError
from penstock.shards.codecs import images as images_module
from penstock.shards.codecs import turbojpeg
from penstock.shards.guards import inspect_jpeg
from penstock.shards.guards import jpeg as jpeg_guard
from penstock.testing.images import make_image

SOF0, SOS = b"\xff\xc0", b"\xff\xda"


def jpeg(mode: str = "RGB", height: int = 48, width: int = 64, **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(make_image(height, width, seed=3)).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def with_frame(data: bytes, marker: int = 0xC0, **fields) -> bytes:
    """Return the same image with another frame marker, precision, height, width or sampling."""
    frame = data.index(SOF0)
    precision, height, width = struct.unpack_from(">BHH", data, frame + 4)
    changed = struct.pack(
        ">BHH",
        fields.get("precision", precision),
        fields.get("height", height),
        fields.get("width", width),
    )
    marked = data[:frame] + bytes((0xFF, marker)) + data[frame + 2 : frame + 4]
    out = bytearray(marked + changed + data[frame + 9 :])
    out[frame + 11] = fields.get("sampling", out[frame + 11])
    return bytes(out)


def segment(marker: int, content: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", 2 + len(content)) + content


SCAN = segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")


def reason(data: bytes) -> str:
    """Return the reason with which the guard refuses the data."""
    with pytest.raises(GuardError) as caught:
        inspect_jpeg(data)
    assert caught.value.stage == "guard"
    assert caught.value.advice
    return caught.value.reason


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_size_and_kind_are_read_from_any_buffer(wrap):
    info = inspect_jpeg(wrap(jpeg(height=48, width=64)))
    assert info == jpeg_guard.JpegInfo(width=64, height=48, components=3, progressive=False)


@pytest.mark.parametrize(("mode", "components"), [("L", 1), ("RGB", 3), ("CMYK", 4)])
@pytest.mark.parametrize("progressive", [False, True])
def test_greyscale_colour_and_cmyk_are_accepted(mode, components, progressive):
    info = inspect_jpeg(jpeg(mode, progressive=progressive))
    assert (info.components, info.cmyk, info.progressive) == (components, components == 4, progressive)


def test_metadata_and_fill_bytes_before_the_frame_are_accepted():
    data = jpeg()
    data = data[:2] + segment(0xE1, b"Exif\0\0" + bytes(9000)) + b"\xff" * 40 + data[2:]
    for marker in (b"\xff\xdb", SOF0, b"\xff\xc4", SOS):
        data = data.replace(marker, b"\xff\xff\xff" + marker, 1)
    assert inspect_jpeg(data).width == 64
    assert np.array_equal(images_module.decode_jpeg(data), images_module.decode_jpeg(jpeg()))


@pytest.mark.parametrize(
    ("marker", "word"),
    [
        (0xC3, "lossless"),
        (0xC5, "hierarchical"),
        (0xC9, "arithmetic"),
        (0xCA, "arithmetic"),
        (0xC8, "reserved"),
    ],
)
def test_unsupported_frames_are_refused_with_their_kind(marker, word):
    assert word in reason(with_frame(jpeg(), marker))


def test_a_lossless_frame_never_reaches_the_decoder(monkeypatch):
    class Decoder:
        def decode_jpeg(self, *_args, **_options):
            pytest.fail("a lossless JPEG was passed to the decoder")

    monkeypatch.setattr(images_module, "simplejpeg", Decoder())
    monkeypatch.setattr(turbojpeg, "simplejpeg", Decoder())
    with pytest.raises(GuardError, match="lossless"):
        images_module.decode_jpeg(with_frame(jpeg(), 0xC3), divisor=8)
    with pytest.raises(GuardError, match="lossless"):
        images_module.shrink_jpeg(with_frame(jpeg(), 0xC3), 8, "long", 80)


def test_samples_of_12_bits_are_refused():
    assert "12 bits" in reason(with_frame(jpeg(), 0xC1, precision=12))


def test_an_image_of_65500_squared_pixels_is_refused():
    assert "65500×65500" in reason(with_frame(jpeg(), height=65500, width=65500))


def test_a_size_that_the_bytes_cannot_hold_is_refused():
    assert "cannot hold" in reason(with_frame(jpeg(), height=12000, width=12000))


def test_the_smallest_possible_coding_of_a_uniform_image_is_accepted():
    out = io.BytesIO()
    Image.fromarray(np.full((2048, 2048), 128, np.uint8)).save(out, "JPEG", progressive=True, optimize=True)
    assert inspect_jpeg(out.getvalue()).width == 2048


@pytest.mark.parametrize("fields", [{"height": 0}, {"width": 0}])
def test_an_image_without_pixels_is_refused(fields):
    assert "×" in reason(with_frame(jpeg(), **fields))


@pytest.mark.parametrize("sampling", [0x01, 0x10, 0x51, 0x15, 0xFF])
def test_impossible_sampling_factors_are_refused(sampling):
    assert "sampling" in reason(with_frame(jpeg(), sampling=sampling))


def test_two_components_are_refused():
    content = struct.pack(">BHHB", 8, 8, 8, 2) + bytes((1, 0x11, 0, 2, 0x11, 0))
    assert "2 components" in reason(b"\xff\xd8" + segment(0xC0, content) + SCAN)


def test_thousands_of_scans_are_refused():
    data = jpeg(progressive=True)
    last_scan = data.rindex(SOS)
    crafted = data[:-2] + data[last_scan:-2] * 3000 + b"\xff\xd9"
    assert "scans" in reason(crafted)


def test_scans_are_limited_by_their_product_with_the_pixels(monkeypatch):
    data = jpeg(progressive=True)
    monkeypatch.setattr(jpeg_guard, "MAX_SCANNED_PIXELS", 5 * 64 * 48)
    assert "too much work" in reason(data)


def test_scans_of_a_sequential_image_are_counted():
    data = jpeg()
    first_scan = data.index(SOS)
    extra_scan = segment(0xDA, bytes((1, 1, 0, 0, 63, 0))) + b"\0\0"
    crafted = data[:first_scan] + extra_scan * 200 + data[first_scan:]
    assert "scans" in reason(crafted)


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.2])
def test_a_truncated_image_is_refused_with_advice(kept):
    data = jpeg(height=200, width=300)
    assert "cut short" in reason(data[: int(len(data) * kept)])


@pytest.mark.parametrize("length", range(0, 40))
def test_the_first_bytes_of_an_image_alone_are_refused(length):
    reason(jpeg()[:length])


@pytest.mark.parametrize("trailer", [b"\0" * 64, b"appended film" * 5000])
def test_bytes_after_the_end_marker_are_accepted(trailer):
    assert inspect_jpeg(jpeg() + trailer).height == 48


def test_an_end_marker_in_the_thumbnail_does_not_count():
    data = jpeg()
    data = data[:2] + segment(0xE1, b"Exif\0\0" + jpeg(height=8, width=8)) + data[2:-2]
    assert "no end marker" in reason(data)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"<html>not found</html>", "FF D8"),
        (b"\xff\xd8\xff\xd9\xff\xd9", "FF D9"),
        (b"\xff\xd8\xff\xd8\xff\xe0\x00\x02", "FF D8"),
        (b"\xff\xd8abc\xff\xda\x00\x02", "before any frame"),
        (b"\xff\xd8" + b"abc" * 1000, "no segment after byte 2"),
        (b"\xff\xd8abc\xff\xd8" + SCAN, "FF D8"),
        (b"\xff\xd8abc\xff\xd9" + SCAN, "FF D9"),
        (b"\xff\xd8abc\xff\x80" + SCAN, "FF 80"),
        (b"\xff\xd8\xff\xe0\x00\x01\xff\xd9", "shorter"),
        (b"\xff\xd8\xff\xe0\xff\xffabc", "cut short"),
        (b"\xff\xd8" + b"\xff" * 100_000, "fill"),
        (b"\xff\xd8" + SCAN, "before any frame"),
        (b"\xff\xd8" + segment(0xFE, b"") * 100_000, "segments"),
        (b"\xff\xd8" + segment(0xC0, b"") + SCAN, "wrong length"),
        (b"\xff\xd8" + segment(0xC0, struct.pack(">BHHB", 8, 8, 8, 3)) + SCAN, "wrong length"),
    ],
)
def test_other_data_is_refused_with_a_reason(data, word):
    assert word in reason(data)


@pytest.mark.parametrize("stray", [b"x", b"\0" * 70_000, b"\xff\0", b"\xff\x01", b"\xff\xd7"])
def test_stray_bytes_between_segments_are_reported_and_cut_out(stray):
    data = jpeg()
    frame = data.index(SOF0)
    odd = data[:frame] + stray + data[frame:]
    assert inspect_jpeg(odd) == jpeg_guard.JpegInfo(64, 48, 3, False, stray_bytes=True)
    assert not inspect_jpeg(data).stray_bytes
    for wrap in (bytes, bytearray, memoryview):
        assert jpeg_guard.without_stray_bytes(wrap(odd)) == data


def test_a_lossless_frame_after_stray_bytes_is_refused():
    data = with_frame(jpeg(), 0xC3)
    assert "lossless" in reason(data[:2] + b"junk" + data[2:])


def test_a_frame_header_that_has_lost_its_marker_is_not_passed_over():
    assert "before any frame" in reason(jpeg().replace(SOF0, b"\x7f\xc0", 1))


def test_two_frame_headers_are_refused():
    data = jpeg()
    frame, frame_end = data.index(SOF0), data.index(b"\xff\xc4")
    assert "two frame" in reason(data[:frame_end] + data[frame:frame_end] + data[frame_end:])
