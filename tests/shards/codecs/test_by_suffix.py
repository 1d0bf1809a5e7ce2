"""Suffixes select codecs, and parts are verified completely."""

import io
import json
import zlib

import numpy as np
import pytest
from PIL import Image

from penstock.errors import DecodeError, GuardError
from penstock.shards.codecs import codec_of, compress, encode_jpeg, encode_npy, verify_part
from penstock.testing.images import make_image

ARRAY = encode_npy(np.arange(50, dtype=np.float32))


def image(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(make_image(40, 30, seed=1)).save(out, kind)
    return out.getvalue()


def npz() -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, a=np.arange(500))
    return out.getvalue()


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        (".jpg", "jpeg"),
        (".JPEG", "jpeg"),
        ("_features.npz", "npz"),
        (".Features.NPY", "npy"),
        (".features.npy.zst", "npy.zst"),
        ("_edge.npy.zst", "npy.zst"),
        (".json", "json"),
        (".cls", "text"),
        (".txt", "text"),
        (".png", "image"),
        (".seg.webp", "image"),
        (".tar.zst", "opaque"),
        (".zst", "opaque"),
        (".bin", "opaque"),
        ("", "opaque"),
        (".", "opaque"),
        ("jpg", "opaque"),
        ("_jpg", "opaque"),
    ],
)
def test_the_last_extensions_determine_the_codec(suffix, codec):
    assert codec_of(suffix) == codec


GOOD = {
    ".jpg": encode_jpeg(make_image(40, 30, seed=1), 90),
    ".npz": npz(),
    ".npy": ARRAY,
    ".npy.zst": compress(ARRAY),
    ".json": json.dumps({"a": [1, "ü"]}).encode(),
    ".txt": "grün".encode(),
    ".png": image("PNG"),
    ".bmp": image("BMP"),
    ".webp": image("WEBP"),
}


@pytest.mark.parametrize("suffix", GOOD)
@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_a_complete_part_is_verified(suffix, wrap):
    assert verify_part(suffix, wrap(GOOD[suffix])) is None


@pytest.mark.parametrize("suffix", [suffix for suffix in GOOD if suffix != ".txt"])
@pytest.mark.parametrize("kept", [0.0, 0.6])
def test_a_truncated_part_fails(suffix, kept):
    data = GOOD[suffix]
    with pytest.raises((GuardError, DecodeError)) as caught:
        verify_part(suffix, data[: int(len(data) * kept)])
    assert caught.value.advice


@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        (".txt", b"\xff\xfe\x00"),
        (".json", b"[" * 100_000),
        (".json", b"\xff"),
        (".json", b"9" * 10_000),
        (".png", b"<html>"),
        (".png", GOOD[".npy"]),
        (".jpg", b"<html>"),
    ],
)
def test_parts_of_another_format_fail(suffix, data):
    with pytest.raises(DecodeError):
        verify_part(suffix, data)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".JPEG", ".webp"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_an_image_is_verified_by_its_bytes_whatever_its_name(suffix, kind):
    assert verify_part(suffix, image(kind)) is None
    with pytest.raises((GuardError, DecodeError)):
        verify_part(suffix, image(kind)[:-60])


def test_an_image_of_16_bits_is_not_called_damaged():
    out = io.BytesIO()
    Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100).save(out, "PNG")
    assert verify_part(".png", out.getvalue()) is None


def test_the_error_about_an_unknown_format_shows_how_the_file_begins():
    with pytest.raises(DecodeError, match=r"it begins with b'<html>no"):
        verify_part(".jpg", b"<html>not found</html>")


def test_a_png_too_large_to_decode_is_refused_by_its_header():
    data = bytearray(GOOD[".png"])
    data[16:24] = (50_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(GuardError, match="too large"):
        verify_part(".png", bytes(data))


def test_parts_with_unknown_suffixes_are_accepted():
    assert verify_part(".bin", b"\x00anything") is None
