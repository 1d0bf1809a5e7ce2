"""Images that are not JPEGs, and masks: nothing is clipped, reduced or coloured in silence."""

from __future__ import annotations

import io
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from penstock.errors import DecodeError, GuardError, SampleError
from penstock.shards.codecs.images import decode_mask, decode_pillow_image, exif_orientation
from penstock.testing.images import make_image

RGB = make_image(41, 30, seed=1)
RAMP = np.arange(41 * 30, dtype=np.uint16).reshape(41, 30) * 53


def saved(pixels: np.ndarray | Image.Image, kind: str, **options) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def by_opencv(pixels: np.ndarray, ending: str) -> bytes:
    """Encode with OpenCV, which writes 16-bit colours, unlike Pillow."""
    return cv2.imencode(ending, pixels)[1].tobytes()


def palette_image(ids: np.ndarray) -> Image.Image:
    image = Image.fromarray(ids)
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    return image


def interlaced_png(values: np.ndarray) -> bytes:
    """Write greyscale pixels in the seven passes of Adam7, which Pillow reads but does not write."""
    coded = bytearray()
    for top, left, down, across in (
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ):
        for row in values[top::down, left::across]:
            if row.size:
                coded += b"\0" + row.tobytes()
    height, width = values.shape

    def chunk(name: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\0\0\0\x01"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(coded)) + chunk(b"IEND", b"")


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_format_gives_the_pixels_that_pillow_gives(kind, mode):
    data = saved(RGB, kind)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert(mode)).reshape(41, 30, -1)
    assert np.array_equal(decode_pillow_image(memoryview(data), mode), expected)


@pytest.mark.parametrize("source", ["RGBA", "LA", "P", "1", "L", "CMYK"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_mode_of_8_bits_becomes_rgb_or_greyscale_as_by_pillow(source, mode):
    image = Image.fromarray(RGB).convert(source)
    data = saved(image, "TIFF" if source == "CMYK" else "PNG")
    assert np.array_equal(decode_pillow_image(data, mode).squeeze(), np.asarray(image.convert(mode)))


def test_the_alpha_channel_is_left_out_and_not_blended_with_a_background():
    pixels = np.dstack((RGB, np.full(RGB.shape[:2], 3, np.uint8)))
    assert np.array_equal(decode_pillow_image(saved(pixels, "PNG")), RGB)


def test_a_palette_with_transparency_gives_its_colours():
    image = palette_image(RGB[:, :, 0])
    data = saved(image, "PNG", transparency=bytes(range(256)))
    assert np.array_equal(decode_pillow_image(data), np.asarray(image.convert("RGB")))


def test_an_interlaced_png_is_decoded():
    values = RGB[:, :, 0].copy()
    assert np.array_equal(decode_pillow_image(interlaced_png(values), "L")[:, :, 0], values)
    assert np.array_equal(decode_mask(interlaced_png(values)), values)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_the_first_of_several_frames_is_decoded(kind):
    frames = [Image.fromarray(np.full((20, 30), value, np.uint8)).convert("RGB") for value in (10, 200, 90)]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    pixels = decode_pillow_image(data)
    assert pixels.shape == (20, 30, 3)
    assert np.abs(pixels.astype(int) - 10).max() <= 1


# -- 16 bits ----------------------------------------------------------------------------------------------------------

DEEP = {
    "PNG": saved(RAMP, "PNG"),
    "TIFF": saved(RAMP, "TIFF"),
    "big-endian TIFF": saved(Image.frombytes("I;16B", (30, 41), RAMP.astype(">u2").tobytes()), "TIFF"),
    "compressed TIFF": saved(RAMP, "TIFF", compression="tiff_deflate"),
    "PGM": by_opencv(RAMP, ".pgm"),
    "32-bit TIFF": saved(RAMP.astype(np.int32), "TIFF"),
}


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_16_bits_read_as_8_are_an_error_that_names_the_mode_to_use(name, mode):
    with pytest.raises(SampleError, match=rf"(16|32) bits per channel, of which mode='{mode}' would keep 8") as caught:
        decode_pillow_image(DEEP[name], mode)
    assert caught.value.advice == 'Read it with mode="I;16"'


@pytest.mark.parametrize("name", DEEP)
def test_16_bits_read_as_such_are_exact(name):
    pixels = decode_pillow_image(DEEP[name], "I;16")
    assert (pixels.dtype, pixels.shape) == (np.uint16, (41, 30, 1))
    assert pixels.dtype.isnative
    assert np.array_equal(pixels[:, :, 0], RAMP)


COLOURS_16 = (np.dstack([RAMP] * 3), np.dstack([RAMP] * 4))


@pytest.mark.parametrize("ending", [".png", ".tiff"])
@pytest.mark.parametrize("pixels", COLOURS_16, ids=["RGB", "RGBA"])
@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
def test_16_bit_colours_are_refused_instead_of_reduced_to_8(ending, pixels, mode):
    with pytest.raises(SampleError, match="16 bits"):
        decode_pillow_image(by_opencv(pixels, ending), mode)


def test_16_bit_colours_in_a_ppm_file_are_refused():
    with pytest.raises(SampleError, match="16 bits"):
        decode_pillow_image(by_opencv(COLOURS_16[0], ".ppm"))


@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
def test_floating_point_pixels_are_refused(mode):
    with pytest.raises(SampleError, match="32 bits") as caught:
        decode_pillow_image(saved(RAMP.astype(np.float32), "TIFF"), mode)
    assert ".npy" in caught.value.advice


@pytest.mark.parametrize("data", [saved(RGB, "PNG"), saved(RGB[:, :, 0].copy(), "PNG")], ids=["RGB", "L"])
def test_8_bits_read_as_16_are_refused(data):
    with pytest.raises(SampleError, match="expects 16-bit greyscale"):
        decode_pillow_image(data, "I;16")


@pytest.mark.parametrize("value", [-1, 65536])
def test_values_that_16_bits_cannot_hold_are_refused(value):
    with pytest.raises(SampleError, match="16 bits cannot"):
        decode_pillow_image(saved(np.full((4, 5), value, np.int32), "TIFF"), "I;16")


@pytest.mark.parametrize("largest", [1000, 4095, 65535])
def test_a_pgm_gives_the_numbers_that_it_holds_and_not_what_pillow_scales_them_to(largest):
    values = (np.arange(1230) % (largest + 1)).reshape(41, 30)
    data = f"P5 30 41 {largest}\n".encode() + values.astype(">u2").tobytes()
    assert np.array_equal(decode_pillow_image(data, "I;16")[:, :, 0], values)
    assert np.array_equal(decode_mask(data), values)


# -- masks ------------------------------------------------------------------------------------------------------------

IDS = (np.arange(1230).reshape(41, 30) % 251).astype(np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF"])
def test_a_palette_mask_gives_its_indices_and_not_its_colours(kind):
    data = saved(palette_image(IDS), kind)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image)  # a GIF may have its palette sorted
    assert np.array_equal(decode_mask(data), expected)
    assert kind == "GIF" or np.array_equal(expected, IDS)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_palette_mask_of_few_bits_gives_its_indices(bits):
    ids = IDS % 2**bits
    assert np.array_equal(decode_mask(saved(palette_image(ids), "PNG", bits=bits)), ids)


def test_a_palette_mask_with_transparent_colours_gives_its_indices():
    assert np.array_equal(decode_mask(saved(palette_image(IDS), "PNG", transparency=0)), IDS)
    assert np.array_equal(decode_mask(saved(palette_image(IDS), "PNG", transparency=bytes(range(256)))), IDS)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "PPM"])
def test_greyscale_masks_are_exact(kind):
    assert np.array_equal(decode_mask(saved(IDS, kind)), IDS)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "PPM"])
def test_a_1_bit_mask_gives_0_and_1(kind):
    ids = decode_mask(saved(Image.fromarray(IDS % 2 * 255).convert("1"), kind))
    assert ids.dtype == np.uint8
    assert np.array_equal(ids, IDS % 2)


@pytest.mark.parametrize("name", DEEP)
def test_16_bit_masks_are_exact(name):
    assert np.array_equal(decode_mask(DEEP[name]), RAMP)


def test_a_pgm_mask_of_few_classes_is_not_spread_over_0_to_255():
    data = b"P5 30 41 20\n" + (IDS % 21).tobytes()
    assert np.array_equal(decode_mask(data), IDS % 21)


@pytest.mark.parametrize(("mode", "kind"), [("LA", "PNG"), ("PA", "TIFF")])
def test_an_opaque_alpha_channel_of_a_mask_is_ignored_and_another_one_is_an_error(mode, kind):
    image = palette_image(IDS).convert("PA") if mode == "PA" else Image.fromarray(IDS).convert("LA")
    assert np.array_equal(decode_mask(saved(image, kind)), IDS)
    image.putalpha(Image.fromarray(np.where(IDS == 7, 0, 255).astype(np.uint8)))
    with pytest.raises(SampleError, match="transparent pixels"):
        decode_mask(saved(image, kind))


@pytest.mark.parametrize(
    "data",
    [
        saved(RGB, "PNG"),
        saved(RGB, "JPEG"),
        saved(RGB, "WEBP"),
        saved(Image.fromarray(RGB).convert("CMYK"), "JPEG"),
        saved(RAMP.astype(np.float32), "TIFF"),
        by_opencv(COLOURS_16[0], ".png"),
    ],
)
def test_a_mask_of_colours_or_fractions_is_an_error(data):
    with pytest.raises(SampleError, match="has no class ids") as caught:
        decode_mask(data)
    assert "greyscale or palette PNG" in caught.value.advice


def test_a_greyscale_jpeg_gives_its_levels():
    data = saved(np.full((20, 30), 7, np.uint8), "JPEG")
    assert (decode_mask(data) == 7).all()


# -- orientation ------------------------------------------------------------------------------------------------------


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_the_rotation_is_applied_only_if_requested_and_only_if_it_is_one(kind, orientation):
    data = saved(RGB, kind, exif=exif(orientation), lossless=True)
    expected = {2: RGB[:, ::-1], 3: RGB[::-1, ::-1], 4: RGB[::-1], 5: RGB.swapaxes(0, 1)}
    expected |= {6: np.rot90(RGB, -1), 7: RGB[::-1, ::-1].swapaxes(0, 1), 8: np.rot90(RGB)}
    assert np.array_equal(decode_pillow_image(data, oriented=True), expected.get(orientation, RGB))
    assert np.array_equal(decode_pillow_image(data), RGB)


@pytest.mark.parametrize("content", [b"", b"II", b"II*\0" + b"\xff" * 40, b"MM\0*" + bytes(200), b"garbage"])
def test_an_image_with_unreadable_exif_data_counts_as_upright(content):
    png = saved(RGB, "PNG", exif=b"Exif\0\0" + content)
    assert np.array_equal(decode_pillow_image(png, oriented=True), RGB)
    assert exif_orientation(saved(RGB, "JPEG", exif=b"Exif\0\0" + content)) == 1


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
@pytest.mark.parametrize("decode", [decode_pillow_image, decode_mask])
def test_a_truncated_image_is_an_error(kind, decode):
    data = saved(RGB[:, :, 0].copy() if kind != "WEBP" else RGB, kind)
    with pytest.raises((DecodeError, SampleError)):
        decode(data[: int(len(data) * 0.6)])


@pytest.mark.parametrize("decode", [decode_pillow_image, decode_mask])
def test_an_image_of_too_many_pixels_is_refused_by_its_header(decode):
    data = bytearray(saved(IDS, "PNG"))
    data[16:24] = (50_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(GuardError, match="too large"):
        decode(bytes(data))
