"""Masks: class ids that no resizing changes, at the same place as the pixels of their image."""

import io

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

import penstock
from penstock import Image, Mask, RandomResizedCrop
from penstock.data.fields.base import SampleContext
from penstock.data.fields.geometry import RANDOM_NUMBERS, no_image
from penstock.errors import SampleError, SettingError
from penstock.testing import tar_bytes

SETTINGS = {
    "pad": {"size": (48, 64)},
    "letterbox": {"size": (48, 64), "fit": "letterbox"},
    "crop": {"size": (48, 64), "fit": "crop"},
    "stretch": {"size": (48, 64), "fit": "stretch"},
    "short": {"size": 48, "fit": "short"},
    "center": {"size": 48, "resize": 60, "crop": "center"},
    "random": {"size": (48, 64), "crop": RandomResizedCrop()},
    "as it is": {},
}
MODES = ("L", "P", "1", "I;16")
MASKS = 10_000


def saved(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return memoryview(buffer.getvalue())


def random_mask(mode, rng):
    """Return a mask of some classes, in runs and as single pixels, and its shape."""
    height, width = rng.integers(1, 90, 2)
    highest = {"L": 256, "P": 256, "1": 2, "I;16": 65_536}[mode]
    classes = rng.integers(0, highest, rng.integers(1, 30))
    ids = classes[rng.integers(0, len(classes), (height, width))]
    ids[: height // 2] = np.sort(ids[: height // 2], axis=1)
    if mode == "I;16":
        return Pillow.fromarray(ids.astype(np.uint16))
    image = Pillow.fromarray(ids.astype(np.uint8) * (255 if mode == "1" else 1))
    if mode == "1":
        return image.convert("1", dither=Pillow.Dither.NONE)
    if mode == "P":
        image.putpalette(rng.integers(0, 256, 768, np.uint8).tobytes())
    return image


def image_like(mask):
    """Return an image as large as a mask."""
    return saved(Pillow.new("RGB", mask.size))


def decoded(image_field, mask_field, image, mask, draws=()):
    """Return a sample's image, its mask and their geometry, as a worker decodes them."""
    sample = SampleContext(draws)
    pixels = image_field.decode_value(".png", image, sample)
    sample.geometries["image"] = sample.geometry
    return pixels, mask_field.decode_value("_mask.png", mask, sample), sample.geometry


def by_pillow(mask, geometry):
    """Return the ids that the output shows, by Pillow's nearest resize of the same window."""
    top, left, height, width = geometry.window
    window = mask.crop((left, top, left + width, top + height))
    resized = np.asarray(window.resize((geometry.width, geometry.height), Pillow.Resampling.NEAREST))
    rows, columns = geometry.covered
    shown = resized[geometry.cut_top : geometry.cut_top + rows, geometry.cut_left : geometry.cut_left + columns]
    return shown[:, ::-1] if geometry.mirrored else shown


def test_10_000_masks_of_all_modes_have_the_ids_that_pillow_s_nearest_resize_has():
    rng = np.random.default_rng(0)
    mask_field = Mask("_mask.png", like="image", dtype="int32", fill=-1)
    fields = [Image(".png", flip=0.5, **settings) for name, settings in SETTINGS.items()]
    blank = {}
    for number in range(MASKS):
        mode = MODES[number % len(MODES)]
        mask = random_mask(mode, rng)
        if mask.size not in blank:
            blank[mask.size] = image_like(mask)
        field = fields[number // len(MODES) % len(fields)]
        draws = rng.random(RANDOM_NUMBERS).tolist()
        _, found, geometry = decoded(field, mask_field, blank[mask.size], saved(mask), draws)
        expected = by_pillow(mask, geometry)
        rows, columns = geometry.covered
        top, left = geometry.pad_top, geometry.pad_left
        assert np.array_equal(found[top : top + rows, left : left + columns], expected), (number, mode, geometry)
        assert set(np.unique(found)) - {-1} == set(np.unique(expected).tolist())


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("quality", ["fast", "exact"])
@pytest.mark.parametrize("seed", range(4))
def test_a_mask_lies_where_its_image_lies(name, quality, seed):
    rows, columns = np.mgrid[:97, :131]
    ids = (rows // 8 * 17 + columns // 8).astype(np.uint8)  # blocks, whose number is also the image's colour
    settings = {**SETTINGS[name], "quality": quality} if SETTINGS[name] else {}
    draws = np.random.default_rng(seed).random(RANDOM_NUMBERS).tolist()
    image_field = Image(".png", layout="HWC", fill=99, flip=0.5, **settings)
    image = saved(Pillow.fromarray(np.dstack([ids] * 3)))
    pixels, mask, geometry = decoded(
        image_field, Mask("_mask.png", like="image", fill=99), image, saved(Pillow.fromarray(ids)), draws
    )
    assert mask.shape == pixels.shape[:2]
    differs = pixels[:, :, 0] != mask
    # Only at the borders of blocks may they differ, where the image mixes two colours.
    down, across = (abs(scale) * 8 for scale in geometry.scale)
    assert differs.mean() < 2.2 * (1 / down + 1 / across)
    inside = np.zeros(mask.shape, bool)
    inside[1:-1, 1:-1] = True
    for step in ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1)):
        inside &= np.roll(mask, step, (0, 1)) == mask
    if min(down, across) > 6:
        assert inside.any()
        assert not differs[inside].any()


def test_the_padding_of_a_mask_is_its_fill_id():
    ids = Pillow.fromarray(np.full((20, 40), 3, np.uint8))
    for fill in (255, 0, 7):
        field = Mask("_mask.png", like="image", fill=fill)
        _, found, _ = decoded(Image(".png", size=40), field, image_like(ids), saved(ids))
        assert (found[:20] == 3).all()
        assert (found[20:] == fill).all()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_ids_have_the_declared_dtype_with_and_without_an_image(dtype):
    ids = Pillow.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    _, found, _ = decoded(Image(".png"), Mask("_mask.png", like="image", dtype=dtype), image_like(ids), saved(ids))
    alone = Mask("_mask.png", dtype=dtype).decode_value("_mask.png", saved(ids), SampleContext())
    assert found.dtype == alone.dtype == dtype
    assert np.array_equal(found, np.asarray(ids))
    assert np.array_equal(alone, np.asarray(ids))


@pytest.mark.parametrize(("dtype", "id_"), [("uint8", 256), ("int16", 40_000)])
def test_an_id_that_the_dtype_cannot_hold_is_an_error(dtype, id_):
    mask = saved(Pillow.fromarray(np.array([[0, id_]], np.uint16)))
    with pytest.raises(SampleError, match=f"ids from 0 to {id_}, more than {dtype} can") as caught:
        Mask("_mask.png", dtype=dtype).decode_value("_mask.png", mask, SampleContext())
    assert caught.value.advice == "Give a larger dtype"


def test_a_mask_of_another_size_than_its_image_is_an_error_with_both_sizes():
    mask = saved(Pillow.fromarray(np.zeros((20, 30), np.uint8)))
    with pytest.raises(SampleError, match="the mask is 20×30 where its image 'image' is 30×20"):
        decoded(Image(".png", size=8), Mask("_mask.png", like="image"), saved(Pillow.new("RGB", (20, 30))), mask)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_mask_of_a_turned_image_is_as_large_as_the_turned_image(orientation):
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    ids = (np.arange(24 * 36).reshape(24, 36) % 251).astype(np.uint8)
    image = Pillow.fromarray(np.dstack([ids] * 3))
    turned = ImageOps.exif_transpose(Pillow.open(io.BytesIO(saved(image, exif=exif)))).convert("L")
    field = Image(".png", size=36, fit="stretch", exif_orientation=True, quality="exact")
    _, found, geometry = decoded(field, Mask("_mask.png", like="image"), saved(image, exif=exif), saved(turned))
    assert np.array_equal(found, by_pillow(turned, geometry))


def test_the_mask_of_a_missing_image_is_all_padding():
    sample = SampleContext(geometries={"image": no_image(5, 6)})
    mask = saved(Pillow.fromarray(np.zeros((20, 30), np.uint8)))
    field, slot = Mask("_mask.png", like="image"), np.zeros((5, 6), np.uint8)
    field.decode_into("_mask.png", mask, slot, sample)
    assert (slot == 255).all()
    assert np.array_equal(field.decode_value("_mask.png", mask, sample), slot)
    assert field.decode_value("_mask.png", mask, SampleContext(geometries={"image": no_image()})) is None


def test_a_missing_mask_is_all_fill_and_as_large_as_its_image():
    image = saved(Pillow.new("RGB", (30, 20)))
    sample = SampleContext()
    Image(".png", size=(5, 6)).decode_value(".png", image, sample)
    sample.geometries["image"] = sample.geometry
    found = Mask("_mask.png", like="image", optional=True, fill=7).missing_value(sample)
    assert found.tolist() == [[7] * 6] * 5
    assert Mask("_mask.png", like="image", optional=True, fill=None).missing_value(sample) is None
    assert Mask("_mask.png", optional=True).missing_value(SampleContext()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"dtype": "float32"}, "dtype"), ({"fill": 256}, "does not fit"), ({"fill": None}, "optional")],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Mask("_mask.png", **settings)


def test_a_mask_that_is_like_no_image_field_is_refused(tmp_path):
    shard = tmp_path / "0.tar"
    shard.write_bytes(tar_bytes([("0.png", b"x"), ("0_mask.png", b"x")]))
    with pytest.raises(SettingError, match="like='photo', which is not an image field"):
        penstock.Loader(str(shard), {"image": Image(".png", size=8), "mask": Mask("_mask.png", like="photo")}, 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_delivers_masks_that_fit_their_images(tmp_path, num_workers):
    members = {}
    for number in range(12):
        ids = np.full((40 + number, 60), number, np.uint8)
        ids[:, 30:] = 100 + number
        members[f"{number:02}.png"] = bytes(saved(Pillow.fromarray(np.dstack([ids] * 3))))
        members[f"{number:02}_mask.png"] = bytes(saved(Pillow.fromarray(ids)))
    shard = tmp_path / "0.tar"
    shard.write_bytes(tar_bytes(members.items()))
    fields = {
        "mask": Mask("_mask.png", like="image", dtype="int64"),
        "image": Image(".png", size=32, crop=RandomResizedCrop(), flip=0.5),
    }
    settings = {"shuffle": True, "seed": 3, "num_workers": num_workers, "device": "numpy"}
    loader = penstock.Loader(str(shard), fields, 4, **settings)
    batches = list(loader)
    loader.close()
    keys = sorted(key for batch in batches for key in batch["__key__"])
    assert keys == sorted(name.removesuffix(".png") for name in members if "mask" not in name)
    for batch in batches:
        assert batch["mask"].dtype == np.int64
        assert batch["mask"].shape == (4, 32, 32)
        assert (batch["image"][:, 0] == batch["mask"]).mean() > 0.9
        for key, mask in zip(batch["__key__"], batch["mask"], strict=True):
            assert set(np.unique(mask)) <= {int(key), 100 + int(key)}
