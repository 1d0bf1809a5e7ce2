"""Tests of masks that are shrunk with their images, and of images that may be undeclared masks."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from tests.support.record_files import write_hugging_face, write_parquet

from penstock.errors import SampleError, SettingError
from penstock.shards.codecs.arrays import decode_npy, encode_npy
from penstock.shards.codecs.images import decode_mask
from penstock.shards.pack.convert import convert_parts
from penstock.shards.pack.options import PackOptions
from penstock.testing import tar_bytes

RNG = np.random.default_rng(5)


def jpeg(height=300, width=400):
    out = io.BytesIO()
    Image.fromarray(RNG.integers(0, 255, (height, width, 3), np.uint8)).save(out, "JPEG")
    return out.getvalue()


def png(image, **options):
    out = io.BytesIO()
    image.save(out, "PNG", **options)
    return out.getvalue()


def mask_image(mode, height=300, width=400):
    """Return a mask of blocks of a few class ids, which interpolation would turn into others."""
    ids = {"L": [0, 7, 255], "P": [0, 1, 200], "I;16": [0, 9, 40_000], "1": [0, 1]}[mode]
    blocks = RNG.choice(ids, (height // 4 + 1, width // 4 + 1)).repeat(4, 0).repeat(4, 1)[:height, :width]
    if mode == "1":
        return Image.fromarray(blocks.astype(bool))
    image = Image.fromarray(blocks.astype(np.uint16 if mode == "I;16" else np.uint8))
    if mode == "P":
        image = Image.frombytes("P", (width, height), image.tobytes())
        image.putpalette(bytes(range(256)) * 3)
    return image


def shrink(parts, size=100, side="long", masks=(".mask.png",)):
    return dict(convert_parts(parts.items(), PackOptions(image_size=size, side=side, masks=masks)))


@pytest.mark.parametrize("mode", ["L", "P", "I;16", "1"])
@pytest.mark.parametrize("side", ["long", "short"])
def test_a_declared_mask_is_shrunk_to_the_nearest_id_of_pillow(mode, side):
    mask = mask_image(mode)
    stored = shrink({".jpg": jpeg(), ".mask.png": png(mask)}, side=side)
    with Image.open(io.BytesIO(stored[".jpg"])) as image, Image.open(io.BytesIO(stored[".mask.png"])) as small:
        assert small.mode == mask.mode
        assert small.size == image.size == ((100, 75) if side == "long" else (133, 100))
        assert np.array_equal(np.array(small), np.array(mask.resize(small.size, Image.Resampling.NEAREST)))
    assert set(np.unique(decode_mask(stored[".mask.png"]))) <= set(np.unique(decode_mask(png(mask))))


def test_the_palette_and_the_transparency_of_a_mask_are_kept():
    mask = mask_image("P")
    stored = shrink({".jpg": jpeg(), ".mask.png": png(mask, transparency=1)})
    with Image.open(io.BytesIO(stored[".mask.png"])) as small:
        assert small.getpalette() == mask.getpalette()
        assert small.info["transparency"] == 1


def test_indices_that_a_short_palette_has_no_colour_for_are_kept():
    rows = b"".join(b"\0" + RNG.choice(np.array([0, 1, 200, 255], np.uint8), 400).tobytes() for _ in range(300))
    mask = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (
            (b"IHDR", struct.pack(">IIBBBBB", 400, 300, 8, 3, 0, 0, 0)),
            (b"PLTE", bytes([0, 0, 0, 9, 9, 9])),
            (b"IDAT", zlib.compress(rows)),
            (b"IEND", b""),
        )
    )
    stored = shrink({".jpg": jpeg(), ".mask.png": mask}, size=200)
    assert set(np.unique(decode_mask(stored[".mask.png"]))) == {0, 1, 200, 255}
    with Image.open(io.BytesIO(stored[".mask.png"])) as small:
        assert small.getpalette()[:6] == [0, 0, 0, 9, 9, 9]


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2"])
def test_a_mask_may_be_an_array(dtype):
    mask = RNG.integers(0, 100, (300, 400)).astype(dtype)
    stored = shrink({".jpg": jpeg(), ".mask.npy": encode_npy(mask)}, masks=(".mask.npy",))
    small = decode_npy(stored[".mask.npy"])
    expected = Image.fromarray(mask.astype(np.int32)).resize((100, 75), Image.Resampling.NEAREST)
    assert small.dtype == mask.dtype
    assert np.array_equal(small, np.array(expected).astype(dtype))


def test_a_mask_of_a_turned_image_is_turned_too():
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.fromarray(RNG.integers(0, 255, (300, 400, 3), np.uint8)).save(out, "JPEG", exif=exif)
    stored = shrink({".jpg": out.getvalue(), ".mask.png": png(mask_image("L", 400, 300))})
    assert decode_mask(stored[".mask.png"]).shape == (100, 75)


@pytest.mark.parametrize("suffix", ["_mask.png", ".MASK.PNG", ".mask.png"])
def test_masks_are_declared_whatever_the_case(suffix):
    stored = shrink({".jpg": jpeg(), suffix: png(mask_image("L"))}, masks=("_mask.png", ".mask.png"))
    assert [decode_mask(data).shape for name, data in stored.items() if name != ".jpg"] == [(75, 100)]


def test_a_sample_whose_image_is_small_keeps_its_mask():
    parts = {".jpg": jpeg(60, 80), ".mask.png": png(mask_image("L", 60, 80))}
    assert shrink(parts) == parts


def test_masks_of_several_images_go_with_the_image_of_their_size():
    parts = {
        ".left.jpg": jpeg(300, 400),
        ".right.jpg": jpeg(200, 200),
        ".left.png": png(mask_image("L", 300, 400)),
        ".right.png": png(mask_image("L", 200, 200)),
    }
    stored = shrink(parts, masks=(".left.png", ".right.png"))
    assert decode_mask(stored[".left.png"]).shape == (75, 100)
    assert decode_mask(stored[".right.png"]).shape == (100, 100)


@pytest.mark.parametrize(
    ("suffix", "data", "reason"),
    [
        (".mask.png", png(mask_image("L", 100, 100)), "no image that is shrunk has this size"),
        (".mask.jpg", jpeg(), "is a JPEG"),
        (".mask.png", b"<html>", "not an image"),
        (".mask.png", png(mask_image("L"))[:500], "decoded"),
        (".mask.npy", encode_npy(np.zeros((300, 400, 3), np.uint8)), "shape"),
        (".mask.npy", encode_npy(np.zeros((3, 4), np.uint8)), "no image that is shrunk"),
    ],
)
def test_a_mask_that_cannot_be_shrunk_makes_its_sample_bad(suffix, data, reason):
    with pytest.raises(SampleError, match=reason) as caught:
        shrink({".jpg": jpeg(), suffix: data}, masks=(suffix,))
    assert caught.value.member == suffix


def test_a_mask_in_another_format_than_png_is_refused():
    out = io.BytesIO()
    mask_image("L").save(out, "BMP")
    with pytest.raises(SampleError, match="no PNG"):
        shrink({".jpg": jpeg(), ".mask.bmp": out.getvalue()}, masks=(".mask.bmp",))


@pytest.mark.parametrize("suffix", [".png", ".mask.png", "_depth.tif"])
def test_an_undeclared_image_of_the_same_size_is_refused_with_the_option(suffix):
    out = io.BytesIO()
    mask_image("L").save(out, "TIFF" if suffix.endswith("tif") else "PNG")
    with pytest.raises(SettingError) as caught:
        shrink({".jpg": jpeg(), suffix: out.getvalue()}, masks=())
    assert "'.jpg'" in caught.value.reason
    assert f"'{suffix}'" in caught.value.reason
    assert f"--mask {suffix}" in caught.value.advice


def test_an_undeclared_image_of_another_size_is_copied():
    parts = {".jpg": jpeg(), ".icon.png": png(mask_image("L", 50, 50))}
    assert shrink(parts, masks=())[".icon.png"] == parts[".icon.png"]


def test_a_png_named_jpg_is_copied_and_a_jpeg_named_png_is_shrunk():
    data = png(mask_image("L"))
    assert shrink({".jpg": data}, masks=())[".jpg"] == data
    with Image.open(io.BytesIO(shrink({".png": jpeg()}, masks=())[".png"])) as image:
        assert (image.format, image.size) == ("JPEG", (100, 75))


def make_masked_shard(path, count=3, suffix=".mask.png"):
    members = []
    for number in range(count):
        members += [(f"{number}.jpg", jpeg()), (f"{number}{suffix}", png(mask_image("L")))]
    path.write_bytes(tar_bytes(members))
    return path


def test_a_shard_with_undeclared_masks_is_refused_before_anything_is_written(tmp_path, plan_of):
    src = make_masked_shard(tmp_path / "a.tar")
    for on_bad in ("raise", "skip"):
        with pytest.raises(SettingError, match=r"'\.jpg' would be shrunk, and image '\.mask\.png'") as caught:
            plan_of(src, image_size=64, on_bad=on_bad)
        assert caught.value.member == "0.mask.png"


def test_a_pack_with_declared_masks_keeps_images_and_masks_of_one_size(tmp_path, pack_in_process, contents):
    src = make_masked_shard(tmp_path / "a.tar", suffix="_mask.png")
    packed = pack_in_process(src, tmp_path / "packed", image_size=64, masks=("_mask.png",))
    sizes = {name: Image.open(io.BytesIO(data)).size for name, data in contents(packed.folder)}
    assert sizes == {f"{number}{suffix}": (64, 48) for number in range(3) for suffix in (".jpg", ".mask.png")}


def test_a_declared_mask_that_no_sample_has_is_refused_by_name(tmp_path, plan_of):
    with pytest.raises(SettingError, match=r"no sample has a mask '\.msk\.png'") as caught:
        plan_of(make_masked_shard(tmp_path / "a.tar"), image_size=64, masks=(".msk.png",))
    assert ".mask.png" in caught.value.advice


def test_masks_without_an_image_size_are_refused():
    with pytest.raises(SettingError, match="keep their size"):
        PackOptions(masks=(".png",))


def test_a_column_of_masks_is_shrunk_with_its_image(tmp_path, pack_in_process, contents):
    src = write_parquet(
        tmp_path / "a.parquet", {"image": [jpeg() for _ in range(3)], "mask": [png(mask_image("L"))] * 3}
    )
    packed = pack_in_process(src, tmp_path / "packed", image_size=64, masks=(".mask.png",))
    assert {Image.open(io.BytesIO(data)).size for _, data in contents(packed.folder)} == {(64, 48)}


def test_images_of_records_are_shrunk_like_others(tmp_path, pack_in_process):
    src = write_hugging_face(tmp_path / "a.parquet", [(jpeg(200, 300), 1)])
    packed = pack_in_process(src, tmp_path / "packed", image_size=64)
    assert packed.reports[0].fields[".jpg"].shape == (43, 64, 3)
