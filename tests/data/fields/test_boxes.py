"""The field of bounding boxes: compared with boxes that are painted on the image; and refusals."""

import io
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

import penstock
from penstock.data.fields import Boxes, Image, RandomResizedCrop
from penstock.data.fields.base import SampleContext
from penstock.data.fields.geometry import ImageGeometry, Window, no_image
from penstock.errors import DecodeError, SettingError
from penstock.testing import make_image, tar_bytes

CENTRE = {"size": (40, 56), "crop": "center", "resize": 60}
RANDOM = {"size": (48, 40), "crop": RandomResizedCrop(scale=(0.2, 1.0))}
IMAGES = [
    {},
    {"size": (60, 80)},
    {"size": (80, 60), "fit": "letterbox"},
    {"size": (50, 50), "fit": "crop"},
    {"size": (30, 90), "fit": "stretch"},
    {"size": 48, "fit": "short"},
    CENTRE,
    RANDOM,
]


def read(field, document, geometry=None, **context):
    sample = SampleContext(**context) if geometry is None else SampleContext(geometries={"image": geometry})
    return field.decode_value(".json", memoryview(json.dumps(document).encode()), sample)


def moved(boxes, geometry, **settings):
    return read(Boxes(".json", like="image", **settings), boxes, geometry).tolist()


def png(pixels):
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, "PNG")
    return memoryview(buffer.getvalue())


# -- against painted boxes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", IMAGES, ids=str)
@pytest.mark.parametrize("flip", [0.0, 1.0])
@pytest.mark.parametrize(("height", "width"), [(120, 150), (97, 64)])
def test_a_box_is_where_its_painted_rectangle_is_in_the_output(settings, flip, height, width):
    image = Image(".png", quality="exact", flip=flip, **settings) if settings else Image(".png", flip=flip)
    rng = np.random.default_rng(height)
    for number in range(12):
        top, left = int(rng.integers(0, height - 20)), int(rng.integers(0, width - 20))
        bottom, right = (int(rng.integers(start + 10, end + 1)) for start, end in ((top, height), (left, width)))
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[top:bottom, left:right] = 255
        sample = SampleContext(draws=rng.random(image.random_numbers).tolist())
        painted = image.decode_value(".png", png(pixels), sample)[0] >= 128
        found = moved([[left, top, right, bottom]], sample.geometry)
        if not found:  # less than half a pixel of it is in the output
            assert painted.sum() <= painted.shape[0] + painted.shape[1], number
            continue
        ((x1, y1, x2, y2),) = found
        if not painted.any():
            assert min(x2 - x1, y2 - y1) < 1, number
            continue
        rows, columns = np.flatnonzero(painted.any(axis=1)), np.flatnonzero(painted.any(axis=0))
        expected = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert np.abs(np.subtract(expected, (x1, y1, x2, y2))).max() <= 1, number


def test_boxes_and_images_agree_with_pillow_on_a_crop_with_padding_and_mirroring():
    """Move a box with Pillow's own operations, without the geometry."""
    pixels = np.zeros((90, 60, 3), np.uint8)
    pixels[20:70, 30:50] = 255
    image = Image(".png", size=(100, 100), fit="letterbox", flip=1.0, quality="exact", fill=7)
    sample = SampleContext(draws=[0.0])
    found = image.decode_value(".png", png(pixels), sample)
    resized = Pillow.fromarray(pixels).resize((67, 100), Pillow.Resampling.BILINEAR).transpose(0)
    canvas = Pillow.new("RGB", (100, 100), (7, 7, 7))
    canvas.paste(resized, (16, 0))
    assert np.array_equal(found.transpose(1, 2, 0), np.asarray(canvas))
    expected = [16 + 67 - 50 * 67 / 60, 20 * 100 / 90, 16 + 67 - 30 * 67 / 60, 70 * 100 / 90]
    assert np.allclose(moved([[30, 20, 50, 70]], sample.geometry), [expected], atol=1e-4)


# -- the rules --------------------------------------------------------------------------------------------------------

HALF = ImageGeometry(100, 200, Window(0, 0, 100, 200), 50, 100, 50, 100)
"""The image at half its size."""
RIGHT = ImageGeometry(100, 200, Window(0, 100, 100, 100), 100, 100, 100, 100)
"""The right half of the image."""
PADDED = ImageGeometry(100, 200, Window(0, 0, 100, 200), 100, 200, 300, 300, pad_top=100, pad_left=50)


@pytest.mark.parametrize(
    ("form", "box"), [("xyxy", [10, 20, 40, 80]), ("xywh", [10, 20, 30, 60]), ("cxcywh", [25, 50, 30, 60])]
)
def test_boxes_of_every_format_become_corners(form, box):
    assert moved([box], HALF, format=form) == [[5, 10, 20, 40]]
    alone = read(Boxes(".json", format=form), [box])
    assert (alone.tolist(), alone.dtype) == ([[10, 20, 40, 80]], np.float32)


@pytest.mark.parametrize(
    ("geometry", "boxes", "expected"),
    [
        (RIGHT, [[0, 0, 90, 90], [50, 10, 150, 90], [120, 10, 130, 20]], [[0, 10, 50, 90], [20, 10, 30, 20]]),
        (RIGHT, [[50, 0, 100, 90]], []),  # it only touches the window
        (PADDED, [[-20, -20, 30, 30], [190, 90, 500, 500]], [[50, 100, 80, 130], [240, 190, 250, 200]]),
        (HALF, [[10, 10, 10, 50], [10, 10, 50, 10], [10, 10, 10, 10]], []),
        (HALF, [[10, 10, 10.0000001, 50]], []),  # it has no width as float32
        (HALF, [], []),
    ],
)
def test_boxes_are_clipped_to_the_image_and_dropped_if_nothing_is_left(geometry, boxes, expected):
    assert moved(boxes, geometry) == expected


@pytest.mark.parametrize(("min_visible", "kept"), [(0.0, 3), (0.1, 2), (0.25, 1), (0.5, 1), (0.99, 1)])
def test_a_box_of_which_no_more_than_min_visible_is_left_is_dropped(min_visible, kept):
    boxes = [[110, 0, 120, 10], [25, 0, 125, 10], [10, 0, 110, 10]]  # all, a quarter and a tenth are visible
    assert len(moved(boxes, RIGHT, min_visible=min_visible)) == kept


def test_an_image_without_visible_boxes_has_an_array_of_none():
    found = read(Boxes(".json", key="boxes", labels="labels", like="image"), {"boxes": [], "labels": []}, HALF)
    assert (found["boxes"].shape, found["boxes"].dtype) == ((0, 4), np.float32)
    assert (found["labels"].shape, found["labels"].dtype) == ((0,), np.int64)


def test_a_missing_image_has_no_visible_boxes():
    assert moved([[0, 0, 9, 9]], no_image(20, 20)) == moved([[0, 0, 9, 9]], no_image()) == []


BOX = st.tuples(*[st.floats(-50, 250, width=32)] * 2, *[st.floats(0, 200, width=32)] * 2).map(list)


@given(st.lists(BOX, max_size=20), st.booleans(), st.sampled_from([0.0, 0.3]))
def test_delivered_boxes_have_an_area_within_the_image_and_keep_their_order(boxes, mirrored, min_visible):
    geometry = ImageGeometry(100, 200, Window(7, 11, 60, 120), 45, 90, 70, 100, 3, 5, 10, 20, mirrored)
    found = read(
        Boxes(".json", key="b", labels="l", like="image", format="xywh", min_visible=min_visible),
        {"b": boxes, "l": [*range(len(boxes))]},
        geometry,
    )
    assert found["labels"].tolist() == sorted(found["labels"].tolist())
    for (x1, y1, x2, y2), label in zip(found["boxes"].tolist(), found["labels"].tolist(), strict=True):
        assert 20 <= x1 < x2 <= 100
        assert 10 <= y1 < y2 <= 52
        assert boxes[label][2] > 0
        assert boxes[label][3] > 0


# -- labels -----------------------------------------------------------------------------------------------------------


def test_labels_stay_with_their_boxes():
    document = {"ann": {"boxes": [[0, 0, 50, 50], [110, 0, 120, 9], [150, 0, 160, 9]], "ids": [7, 8, 9]}}
    found = read(Boxes(".json", key="ann.boxes", labels="ann.ids", like="image"), document, RIGHT)
    assert found["boxes"].tolist() == [[10, 0, 20, 9], [50, 0, 60, 9]]
    assert found["labels"].tolist() == [8, 9]


def test_boxes_and_class_names_are_found_in_a_list_of_objects():
    document = {"objects": [{"bbox": [110, 0, 5, 5], "name": "dog"}, {"bbox": [120, 0, 6, 6], "name": "cat"}]}
    field = Boxes(".json", "objects.bbox", "image", "xywh", labels="objects.name", classes=["cat", "dog"])
    found = read(pickle.loads(pickle.dumps(field)), document, RIGHT)
    assert found["boxes"].tolist() == [[10, 0, 15, 5], [20, 0, 26, 6]]
    assert found["labels"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "settings", "reason"),
    [
        ([1], {}, "2 boxes have 1 labels"),
        (7, {}, "2 boxes have 7"),
        ([1, 1.5], {}, "label 1 is 1.5 where a whole number of int64 is expected"),
        ([True, 1], {}, "label 0 is True where"),
        (["dog", "cow"], {"classes": ["dog", "cat"]}, "label 1 is 'cow' where one of 2 class names is expected"),
    ],
)
def test_wrong_labels_are_an_error_that_names_them(labels, settings, reason):
    field = Boxes(".json", key="b", labels="l", like="image", **settings)
    with pytest.raises(DecodeError) as caught:
        read(field, {"b": [[0, 0, 1, 1], [0, 0, 2, 2]], "l": labels}, HALF)
    assert caught.value.reason == reason or caught.value.reason.startswith(reason)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("[[0, 0, 1, 1], [1, 2, 3]]", "box 1 is [1, 2, 3] where four coordinates in pixels are expected"),
        ("[[0, 0, NaN, 1]]", "box 0 is [0, 0, nan, 1] where four"),
        ("[[0, 0, Infinity, 1]]", "box 0 is [0, 0, inf, 1] where"),
        ("[[0, 0, 1e300, 1]]", "box 0 is [0, 0, 1e+300, 1] where"),
        (f"[[0, 0, {'9' * 400}, 1]]", "box 0 is [0, 0, 999"),
        ('[[0, 0, "1", 1]]', "box 0 is [0, 0, '1', 1] where"),
        ("[[0, 0, true, 1]]", "box 0 is [0, 0, True, 1] where"),
        ("[[0, 0, null, 1]]", "box 0 is [0, 0, None, 1] where"),
        ("[0, 0, 1, 1]", "box 0 is 0 where"),
        ("[[0, 0, 1, 1, 1]]", "box 0 is [0, 0, 1, 1, 1] where"),
        ("{}", "the boxes are an object with the keys [] where a list is expected"),
        ("null", "the boxes are None where a list is expected"),
        ("[[5, 5, 9, 9], [5, 5, 3, 9]]", "box 1 is [5, 5, 3, 9]: as xyxy, its width or height is below 0"),
        ("[[", "is not valid JSON"),
    ],
)
@pytest.mark.parametrize("like", ["image", None])
def test_an_invalid_box_is_an_error_that_names_it(document, reason, like):
    with pytest.raises(DecodeError) as caught:
        Boxes(".json", like=like).decode_value(
            ".json", memoryview(document.encode()), SampleContext(geometries={"image": HALF})
        )
    assert caught.value.reason.startswith(reason)
    assert len(caught.value.reason) < 200


@pytest.mark.parametrize(("form", "box"), [("xywh", [5, 5, -1, 3]), ("cxcywh", [5, 5, 3, -1])])
def test_a_negative_size_is_an_error_that_advises_the_formats(form, box):
    with pytest.raises(DecodeError) as caught:
        moved([box], HALF, format=form)
    assert caught.value.reason == f"box 0 is {box}: as {form}, its width or height is below 0"
    assert "format=xyxy, xywh, cxcywh" in caught.value.advice


def test_a_missing_key_is_an_error_that_shows_what_there_is():
    with pytest.raises(DecodeError, match=r"the JSON has no 'boxes': .* keys \['bboxes'\]"):
        read(Boxes(".json", key="boxes", like="image"), {"bboxes": []}, HALF)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"format": "yolo"}, "format 'yolo' is not known"),
        ({"min_visible": 1.0, "like": "image"}, "min_visible=1.0 is not a fraction"),
        ({"min_visible": float("nan"), "like": "image"}, "is not a fraction"),
        ({"min_visible": 0.5}, "min_visible has no meaning without an image"),
        ({"classes": ["a"]}, "classes are the names of labels"),
    ],
)
def test_invalid_box_settings_are_refused(settings, reason):
    with pytest.raises(SettingError, match=reason):
        Boxes(".json", **settings)


# -- in a loader ------------------------------------------------------------------------------------------------------


def shard_of_boxes(path, boxes):
    """Write a shard of images with these boxes; None is a sample without the part."""
    members = []
    for number, found in enumerate(boxes):
        members.append((f"{number:04}.png", bytes(png(make_image(60, 90, number)))))
        if found is not None:
            members.append((f"{number:04}.json", json.dumps(found).encode()))
    path.write_bytes(tar_bytes(members))
    return path


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("labels", ["l", None])
def test_boxes_are_delivered_in_a_list_and_a_wrong_one_is_skipped_with_its_place(
    make_loader, tmp_path, executor, labels
):
    documents = [{"b": [[0, 0, 10 * n, 10]] * n, "l": [*range(n)]} for n in range(6)]
    documents[4]["b"][2] = [9, 9, 3, 3]
    documents[3] = None
    shard = shard_of_boxes(tmp_path / "boxes.tar", documents)
    fields = {
        "target": Boxes(".json", key="b", labels=labels, like="image", optional=True),
        "image": Image(".png", size=(30, 45), flip=1.0),
    }
    bad = tmp_path / "bad.jsonl"
    settings = {"on_error": "skip", "max_bad_fraction": 1, "bad_samples_path": str(bad)}
    (batch,) = make_loader(shard, fields, batch_size=6, executor=executor, **settings)
    expected = [[[45 - 5 * n, 0, 45, 5]] * n for n in (0, 1, 2)] + [None, [[20, 0, 45, 5]] * 5]
    found = batch["target"]
    if labels is not None:
        assert [each and each["labels"].tolist() for each in found] == [[], [0], [0, 1], None, [0, 1, 2, 3, 4]]
        found = [each and each["boxes"] for each in found]
    assert [None if each is None else each.tolist() for each in found] == expected
    assert '"member":"0004.json"' in bad.read_text()
    assert "box 2 is [9, 9, 3, 3]" in bad.read_text()


def test_boxes_of_no_image_field_are_refused(make_loader, tmp_path):
    shard = shard_of_boxes(tmp_path / "boxes.tar", [[]])
    fields = {"image": Image(".png"), "boxes": Boxes(".json", like="photo")}
    with pytest.raises(SettingError, match="boxes is like='photo', which is not an image field"):
        make_loader(shard, fields)


def test_an_image_that_a_gpu_transform_moves_cannot_have_boxes(make_loader, tmp_path):
    shard = shard_of_boxes(tmp_path / "boxes.tar", [[]])
    boxes = Boxes(".json", like="image")
    for transform in (penstock.GpuTransform(flip=0.5), penstock.GpuTransform(size=8, crop="random")):
        with pytest.raises(SettingError, match="boxes is like='image', which its gpu_transform"):
            make_loader(shard, {"image": Image(".png", size=16, gpu_transform=transform), "boxes": boxes})
    same = Image(".png", size=16, gpu_transform=penstock.GpuTransform(mean=(0.5, 0.5, 0.5)))
    (batch,) = make_loader(shard, {"image": same, "boxes": boxes})
    assert batch["boxes"][0].shape == (0, 4)
