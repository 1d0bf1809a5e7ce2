"""The geometry of images as a field of its own, and what it shows of a field that reads no part."""

import io

import numpy as np
import pytest
from PIL import Image as Pillow

import penstock
from penstock.data.fields import Geometry, Image, RandomResizedCrop
from penstock.data.fields.base import SampleContext
from penstock.data.fields.geometry import no_image
from penstock.datasets import ShardDataset
from penstock.errors import SettingError
from penstock.testing import make_image, tar_bytes

SIZES = [(40, 60), (60, 40), (50, 50), (33, 71), (64, 64), (21, 20)]


def with_geometry(**image):
    return {"image": Image(".png", **image), "__geometry__": Geometry(like="image")}


def keep_half(sample, rng):
    """Return half of the values; a transform cannot change the geometry that is delivered."""
    sample["__geometry__"].clear()
    return {"image": sample["image"][:1]}


@pytest.fixture
def shard(tmp_path):
    members = []
    for number, (height, width) in enumerate(SIZES):
        buffer = io.BytesIO()
        Pillow.fromarray(make_image(height, width, number)).save(buffer, "PNG")
        members.append((f"{number}.png", buffer.getvalue()))
        members.append((f"{number}.cls", b"%d" % number))
    path = tmp_path / "sizes.tar"
    path.write_bytes(tar_bytes(members))
    return path


def expected_letterbox():
    """Height, width, scale and offset of images that fit into 30×30, centred."""
    rows = []
    for height, width in SIZES:
        scaled = [int(side * 30 / max(height, width) + 0.5) for side in (height, width)]
        scale = [scaled[0] / height, scaled[1] / width]
        rows.append([height, width, *scale, *((30 - side) // 2 for side in scaled)])
    return np.float32(rows)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_the_geometry_is_a_tensor_of_size_scale_and_offset(make_loader, shard, executor):
    (batch,) = make_loader(shard, with_geometry(size=30, fit="letterbox"), executor=executor)
    assert np.allclose(batch["__geometry__"].numpy(), expected_letterbox(), atol=1e-5)
    assert batch["__geometry__"].numpy().dtype == np.float32


def test_a_point_of_the_original_is_found_in_the_output(make_loader, tmp_path):
    pixels = np.zeros((80, 120, 3), np.uint8)
    pixels[50:60, 90:100] = 255
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, "PNG")
    path = tmp_path / "points.tar"
    path.write_bytes(tar_bytes([(f"{number}.png", buffer.getvalue()) for number in range(8)]))
    crop = RandomResizedCrop(scale=(0.8, 1.0))
    (batch,) = make_loader(path, with_geometry(size=160, crop=crop, flip=0.5, quality="exact"), seed=3)
    mirrored = 0
    for image, geometry in zip(batch["image"].numpy(), batch["__geometry__"].numpy(), strict=True):
        scale, offset = geometry[2:4], geometry[4:6]
        centre = np.argwhere(image[0] > 128).mean(axis=0) + 0.5
        assert np.allclose(np.array((55, 95)) * scale + offset, centre, atol=1.5)
        mirrored += scale[1] < 0
    assert 0 < mirrored < 8


def test_the_geometry_is_a_list_where_the_images_are(make_loader, shard):
    (batch,) = make_loader(shard, with_geometry())
    assert [each.tolist() for each in batch["__geometry__"]] == [[*size, 1, 1, 0, 0] for size in SIZES]


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_fields_without_a_part_work_beside_others_in_any_order(make_loader, shard, executor, device):
    fields = {"__geometry__": Geometry(like="image"), "label": penstock.Label(".cls"), "image": Image(".png", size=30)}
    loader = make_loader(shard, fields, 2, shuffle=True, seed=1, executor=executor, device=device)
    found = {}
    for batch in loader:
        found |= dict(zip(batch["label"].tolist(), batch["__geometry__"].tolist(), strict=True))
    assert [tuple(found[number][:2]) for number in range(len(SIZES))] == SIZES


def test_fields_without_a_part_work_with_a_sampler(make_loader, shard):
    fields = {**with_geometry(size=30), "label": penstock.Label(".cls")}
    batches = list(make_loader(shard, fields, None, batch_sampler=[[5, 0], [3]]))
    assert [batch["__geometry__"][:, :2].tolist() for batch in batches] == [[[21, 20], [40, 60]], [[33, 71]]]


def test_the_geometry_is_delivered_beside_a_transform(make_loader, shard):
    (batch,) = make_loader(shard, with_geometry(size=30, fit="letterbox"), transform=keep_half)
    assert batch["image"].shape == (6, 1, 30, 30)
    assert np.allclose(batch["__geometry__"].numpy(), expected_letterbox(), atol=1e-5)


def test_a_dataset_of_shards_has_the_geometry(shard):
    dataset = ShardDataset(shard, with_geometry(size=30, fit="letterbox"))
    found = np.stack([dataset[number]["__geometry__"].numpy() for number in range(len(SIZES))])
    assert np.allclose(found, expected_letterbox(), atol=1e-5)


def test_the_geometry_of_a_missing_image_is_all_zeros():
    sample = SampleContext(geometries={"image": no_image(30, 30)})
    assert Geometry("image").decode_value("", memoryview(b""), sample).tolist() == [0] * 6


@pytest.mark.parametrize("size", [30, None])
def test_a_missing_image_has_no_geometry_of_the_image_before(make_loader, tmp_path, size):
    buffer = io.BytesIO()
    Pillow.fromarray(make_image(40, 60, 1)).save(buffer, "PNG")
    members = [("0.png", buffer.getvalue()), ("0.cls", b"0"), ("1.cls", b"1"), ("2.jpg", buffer.getvalue())]
    path = tmp_path / "missing.tar"
    path.write_bytes(tar_bytes([*members, ("2.cls", b"2")]))
    fields = {
        "first": Image(".jpg", size=size, optional=True),
        "image": Image(".png", size=size, optional=True),
        "label": penstock.Label(".cls"),
        "geometry": Geometry(like="image"),
        "boxes": penstock.Boxes(".json", like="image", optional=True),
    }
    (batch,) = make_loader(path, fields, num_workers=1)
    assert [[*each][:2] for each in batch["geometry"]] == [[40, 60], [0, 0], [0, 0]]
    assert batch["boxes"] == [None] * 3


def test_a_geometry_needs_an_image_field_and_a_loader_needs_a_part(make_loader, shard):
    with pytest.raises(SettingError, match="geometry is like='image', which is not an image field"):
        make_loader(shard, {"label": penstock.Label(".cls"), "geometry": Geometry(like="image")})
    with pytest.raises(SettingError, match="no field reads a part"):
        make_loader(shard, {"number": Numbered()})
    with pytest.raises(TypeError, match="like"):
        Geometry()


class Numbered(penstock.Field):
    """A field that reads no part."""

    suffix = ()

    def decode_value(self, suffix, data, sample):
        return 7
