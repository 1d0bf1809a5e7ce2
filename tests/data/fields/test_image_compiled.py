"""The image field with the compiled decoder and without: the same pixels, and the same images refused."""

import functools
import io

import numpy as np
import pytest
from PIL import Image as Pillow

from penstock.data.fields import Image
from penstock.data.fields.base import SampleContext
from penstock.data.fields.geometry import RANDOM_NUMBERS, RandomResizedCrop
from penstock.errors import SampleError
from penstock.shards.codecs.jpeg_window import SWITCH, compiled_decoder
from penstock.testing import make_image

pytestmark = pytest.mark.skipif(
    compiled_decoder() is None,
    reason="the compiled decoder is turned off, or not built: it needs libjpeg-turbo",
)
FIELDS = {
    "pad": {"size": 224},
    "letterbox": {"size": (200, 224), "fit": "letterbox", "fill": 114},
    "crop": {"size": 224, "fit": "crop"},
    "stretch": {"size": (96, 160), "fit": "stretch"},
    "short": {"size": 160, "fit": "short"},
    "own size": {},
    "centre": {"size": 224, "resize": 256, "crop": "center"},
    "random": {"size": 112, "crop": RandomResizedCrop()},
    "far": {"size": 20},
    "enlarged": {"size": 700},
    "exact": {"size": (333, 500), "quality": "exact"},
}
SHAPES = [(333, 500), (500, 375), (256, 128), (1500, 1100)]


@functools.cache
def jpeg(height, width, mode="RGB", **settings):
    buffer = io.BytesIO()
    image = Pillow.fromarray(make_image(height, width, 7)).convert(mode)
    image.save(buffer, "JPEG", **({"quality": 90} | settings))
    return memoryview(buffer.getvalue())


@pytest.fixture
def with_and_without(monkeypatch):
    """Return a function that calls another with the compiled decoder and without it, and returns both results."""

    def both(call):
        compiled_decoder.cache_clear()
        compiled = call()
        monkeypatch.setenv(SWITCH, "0")
        compiled_decoder.cache_clear()
        pure = call()
        monkeypatch.delenv(SWITCH)
        compiled_decoder.cache_clear()
        return compiled, pure

    return both


def decode(field, data, seed=0):
    sample = SampleContext(np.random.default_rng(seed).random(RANDOM_NUMBERS).tolist())
    return field.decode_value(".jpg", data, sample)


def psnr_db(found, expected):
    error = np.square(found.astype(np.float64) - expected).mean()
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_both_give_the_same_pixels_within_the_stated_psnr(with_and_without, name, shape, mode):
    field = Image(".jpg", **FIELDS[name], mode=mode, flip=0.5)
    for seed in range(4):
        compiled, pure = with_and_without(lambda seed=seed: decode(field, jpeg(*shape), seed))
        assert compiled.shape == pure.shape
        assert psnr_db(compiled, pure) > 35


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["pad", "crop", "centre", "random"])
def test_the_compiled_decoder_is_at_least_as_near_to_quality_exact(with_and_without, name, shape):
    for seed in range(4):
        exact = decode(Image(".jpg", **FIELDS[name], quality="exact"), jpeg(*shape), seed)
        both = with_and_without(lambda seed=seed: decode(Image(".jpg", **FIELDS[name]), jpeg(*shape), seed))
        compiled, pure = (psnr_db(found, exact) for found in both)
        assert compiled > min(pure, 50) - 0.5


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("name", ["letterbox", "random"])
def test_layouts_and_dtypes_hold_the_same_values(name, layout, dtype):
    bytes_first = decode(Image(".jpg", **FIELDS[name], layout="HWC"), jpeg(333, 500))
    found = decode(Image(".jpg", **FIELDS[name], layout=layout, dtype=dtype), jpeg(333, 500))
    found = found if layout == "HWC" else found.transpose(1, 2, 0)
    expected = bytes_first if dtype == "uint8" else (bytes_first / np.float32(255)).astype(dtype)
    assert np.array_equal(found, expected)


def test_exif_rotation_gives_the_same_pixels(with_and_without):
    exif = Pillow.Exif()
    exif[0x0112] = 6
    data = jpeg(333, 500, exif=exif.tobytes())
    compiled, pure = with_and_without(lambda: decode(Image(".jpg", size=100, exif_orientation=True), data))
    assert np.array_equal(compiled, pure)


@pytest.mark.parametrize("settings", [{"subsampling": 0}, {"subsampling": 2}, {"progressive": True}, {"mode": "CMYK"}])
def test_a_whole_image_is_refused_with_and_without_the_compiled_decoder_alike(with_and_without, settings):
    rng = np.random.default_rng(5)
    field, whole = Image(".jpg", size=48), jpeg(60, 90, **settings)

    def outcome(data):
        try:
            return decode(field, data)
        except SampleError as error:
            return str(error)

    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for at in rng.integers(2, len(data), rng.integers(1, 4)):
            data[at] = rng.integers(256)
        if rng.random() < 0.2:
            data = data[: rng.integers(2, len(data))] + b"\xff\xd9" * int(rng.integers(2))
        compiled, pure = with_and_without(lambda data=data: outcome(memoryview(bytes(data))))
        assert type(compiled) is type(pure)
        refused += isinstance(pure, str)
        if isinstance(pure, str):
            assert compiled == pure
        else:
            assert psnr_db(compiled, pure) > 30
    assert 20 < refused < 150


def test_a_truncated_jpeg_is_refused_whatever_its_window(with_and_without):
    data = jpeg(333, 500)[:-2000]
    field = Image(".jpg", size=112, crop=RandomResizedCrop(scale=(0.01, 0.02)))

    def refusals():
        count = 0
        for seed in range(20):
            with pytest.raises(SampleError, match="cut short"):
                decode(field, data, seed)
            count += 1
        return count

    assert with_and_without(refusals) == (20, 20)
