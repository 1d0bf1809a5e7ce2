"""Properties that all fields share, and fields of the user, such as those in docs/loader.md."""

import io
import json
import pickle
import re
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

import penstock
from penstock.data.fields import Array, Boxes, Geometry, Image, Json, Label, Mask, Raw, Text
from penstock.data.fields.base import has_fixed_shape
from penstock.datasets import ShardDataset
from penstock.errors import SampleError, SettingError
from penstock.testing import make_image, tar_bytes

PAGE = Path(__file__).parents[3] / "docs" / "loader.md"
RATE = 16_000


@pytest.mark.parametrize(
    ("field", "fixed_shape"),
    [
        (Image(size=8), True),
        (Image(size=8, fit="short"), False),
        (Image(), False),
        (Array(".npy"), True),
        (Array(".npy", ragged=True), False),
        (Array(".npy", optional=True), False),
        (Array(".npy", optional=True, fill=0, shape=(3,), dtype="bfloat16"), True),
        (Label(".cls"), True),
        (Label(".cls", classes=["a", "b"], optional=True), False),
        (Label(".cls", optional=True, fill=-1), True),
        (Boxes(".json", like="image"), False),
        (Geometry(like="image"), True),
        (Mask(".png", like="image"), True),
        (Json(".json"), False),
        (Text(".txt"), False),
        (Raw(".bin", optional=True, fill=b""), False),
    ],
)
def test_fields_report_whether_they_have_a_fixed_shape_and_can_be_pickled(field, fixed_shape):
    assert field.fixed_shape is fixed_shape
    assert pickle.loads(pickle.dumps(field)) == field


def test_a_field_like_an_image_has_a_fixed_shape_only_if_the_image_has_one():
    for image, expected in ((Image(size=8), True), (Image(), False)):
        fields = {"image": image, "geometry": Geometry(like="image"), "label": Label(".cls")}
        assert has_fixed_shape(fields, "geometry") is expected
        assert has_fixed_shape(fields, "label")


def test_a_field_takes_several_suffixes_or_none():
    assert Json((".json", ".meta")).suffixes == (".json", ".meta")
    assert Label((".cls", ".id")).suffixes == (".cls", ".id")
    assert Image().suffixes == (".jpg", ".jpeg", ".png", ".webp")
    assert Geometry("image").suffixes == ()


# -- the fields of docs/loader.md -------------------------------------------------------------------------------------


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """The code of the page's section on fields, as a module that worker processes can import."""
    section = PAGE.read_text().partition("### A field of your own")[2].partition("\n## ")[0]
    code = "\n\n".join(re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    (tmp_path / "penstock_documented_fields.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("penstock_documented_fields")
    del sys.modules["penstock_documented_fields"]


def audio(values, rate=RATE, channels=1):
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(np.asarray(values, "<i2").tobytes())
    return buffer.getvalue()


@pytest.fixture
def speech(tmp_path):
    """A shard of audio that counts up, of 0.5 to 2 seconds; two of its samples are bad."""
    lengths = [8_000, 16_000, 20_000, 24_000, 28_000, 32_000]
    members = [(f"{number}.wav", audio(np.arange(length))) for number, length in enumerate(lengths)]
    members += [("6.wav", audio(np.arange(9), rate=8_000)), ("7.wav", b"not audio")]
    path = tmp_path / "speech.tar"
    path.write_bytes(tar_bytes(members))
    return path


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_the_documented_audio_field_reads_random_windows(make_loader, documented, speech, tmp_path, executor):
    bad = tmp_path / "bad.jsonl"
    settings = {"on_error": "skip", "max_bad_fraction": 1, "bad_samples_path": str(bad), "executor": executor}
    loader = make_loader(speech, {"audio": documented.Wav()}, 8, seed=4, **settings)
    epochs = [next(iter(loader))["audio"].numpy() * 32768 for _ in range(2)]
    for windows in epochs:
        assert (windows.shape, windows.dtype) == ((6, RATE), np.float32)
        assert windows[0].tolist() == [*range(8_000), *[0.0] * 8_000]
        for number, window in enumerate(windows[1:], 1):
            assert np.array_equal(np.diff(window), np.ones(RATE - 1))
            assert 0 <= window[0] <= 12_000 + 4_000 * number - RATE + 4_000
    assert not np.array_equal(epochs[0][2:, 0], epochs[1][2:, 0])
    again = next(iter(make_loader(speech, {"audio": documented.Wav()}, 8, seed=4, **settings, num_workers=1)))
    assert np.array_equal(again["audio"].numpy() * 32768, epochs[0])
    lines = [json.loads(line) for line in bad.read_text().splitlines()]
    assert {line["member"] for line in lines} == {"6.wav", "7.wav"}
    assert any("has (8000, 1, 2) Hz, channels and bytes" in line["reason"] for line in lines)


def test_the_documented_audio_field_works_in_a_dataset_of_shards(documented, speech):
    dataset = ShardDataset(speech, {"audio": documented.Wav()})
    assert (dataset[3]["audio"].shape, len(dataset)) == ((RATE,), 8)
    with pytest.raises(SampleError) as caught:
        dataset[7]
    assert (caught.value.shard, caught.value.member) == (str(speech), "7.wav")


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_the_documented_points_field_follows_its_image(make_loader, documented, tmp_path, executor):
    members = []
    for number in range(6):
        pixels = np.zeros((90, 120, 3), np.uint8)
        pixels[40:46, 30 + number : 36 + number] = 255
        buffer = io.BytesIO()
        Pillow.fromarray(pixels).save(buffer, "PNG")
        centre = [33 + number, 43]
        members += [(f"{number}.png", buffer.getvalue()), (f"{number}.points.json", json.dumps([centre]).encode())]
    path = tmp_path / "points.tar"
    path.write_bytes(tar_bytes(members))
    crop = penstock.RandomResizedCrop(scale=(0.6, 1.0))
    image = Image(".png", size=(120, 160), crop=crop, flip=0.5, quality="exact")
    fields = {"points": documented.Keypoints(), "image": image}
    (batch,) = make_loader(path, fields, executor=executor, seed=2)
    assert batch["points"].shape == (6, 1, 2)
    visible = 0
    for pixels, ((x, y),) in zip(batch["image"].numpy(), batch["points"].numpy(), strict=True):
        found = np.argwhere(pixels[0] > 128)
        if len(found) and 8 < x < 152 and 8 < y < 112:
            visible += 1
            assert np.allclose(found.mean(axis=0) + 0.5, (y, x), atol=1.5)
    assert visible >= 3


# -- fields of the user that are wrong --------------------------------------------------------------------------------


class Returning(penstock.Field):
    """Returns what `values` has for the text of the part."""

    suffix = ".txt"
    optional = True

    def __init__(self, values, missing=None):
        self.values, self.missing = values, missing

    def decode_value(self, suffix, data, sample):
        return self.values[int(bytes(data))]

    def missing_value(self, sample):
        return self.missing


class Listed(Returning):
    """The same, in a list."""

    fixed_shape = False


@pytest.fixture
def texts(tmp_path):
    """A shard whose samples have their number as `.txt`; the last one has none."""
    members = [(f"{number}.cls", b"0") for number in range(4)] + [
        (f"{number}.txt", b"%d" % number) for number in range(3)
    ]
    path = tmp_path / "texts.tar"
    path.write_bytes(tar_bytes(sorted(members)))
    return path


def loaded(make_loader, shard, field, **settings):
    (batch,) = make_loader(shard, {"x": field, "n": Label(".cls")}, **settings)
    return batch["x"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7, 8, 9], [7, 8, 9, 0]),
        ([0.5, 1.5, 2.5], [0.5, 1.5, 2.5, 0]),
        ([True, False, True], [True, False, True, False]),
        ([np.arange(2, dtype=">i4")] * 3, [[0, 1]] * 3 + [[0, 0]]),
        ([np.float32(2)] * 3, [2, 2, 2, 0]),
    ],
)
def test_a_field_may_return_numbers_and_arrays(make_loader, texts, values, expected):
    missing = np.zeros_like(np.asarray(values[0]))
    found = loaded(make_loader, texts, Returning(values, missing))
    assert found.tolist() == expected
    listed = loaded(make_loader, texts, Listed(values))
    assert [np.asarray(each).tolist() for each in listed[:3]] == expected[:3]
    assert listed[3] is None


@pytest.mark.parametrize("value", ["text", np.array("text"), None, {"a": 1}, np.zeros(2, np.longdouble), 2**80])
def test_a_field_whose_values_have_no_shape_must_say_so(make_loader, texts, value):
    with pytest.raises(SettingError, match=r"x: the first value of Returning is no number .* fixed_shape = False"):
        loaded(make_loader, texts, Returning([value] * 3, value))
    listed = loaded(make_loader, texts, Listed([value] * 3, value))
    assert [str(each) for each in listed] == [str(value)] * 4


@pytest.mark.parametrize(
    ("values", "missing", "reason"),
    [
        ([1, 2, 3.5], 4, r"value is float64\[\] where int64\[\] is expected"),
        ([np.zeros(3), np.zeros(1), np.zeros(3)], np.zeros(3), r"value is float64\[1\] where float64\[3\] is expected"),
        ([1, 2, 3], None, r"value is missing where int64\[\] is expected"),
        ([1, 2, 3], 4.5, r"value is float64\[\] where int64\[\] is expected"),
        ([np.zeros(3)] * 3, np.zeros(1), r"value is float64\[1\] where float64\[3\] is expected"),
        ([1, "two", 3], 4, r"value is <U3\[\] where int64\[\] is expected"),
    ],
)
def test_a_value_of_another_shape_is_an_error_of_its_sample(make_loader, texts, tmp_path, values, missing, reason):
    bad = tmp_path / "bad.jsonl"
    settings = {"on_error": "skip", "max_bad_fraction": 1, "bad_samples_path": str(bad)}
    found = loaded(make_loader, texts, Returning(values, missing), **settings)
    assert len(found) == 3
    (line,) = [json.loads(line) for line in bad.read_text().splitlines()]
    assert re.fullmatch(reason, line["reason"])
    assert line["shard"] == str(texts)


@pytest.mark.parametrize("wide", [0, 1])
def test_an_error_in_a_field_without_a_part_does_not_name_the_part_of_another_field(make_loader, texts, wide):
    class Narrow(penstock.Field):
        suffix = ()
        like = "image"

        def decode_value(self, suffix, data, sample):
            return 1 // (9 - sample.geometries["image"].image_width)

    members = []
    for number in range(2):
        buffer = io.BytesIO()
        Pillow.fromarray(make_image(8, 9 if number == wide else 8, 1)).save(buffer, "PNG")
        members.append((f"{number}.png", buffer.getvalue()))
    texts.write_bytes(tar_bytes(members))
    with pytest.raises(SampleError, match="ZeroDivisionError") as caught:
        list(make_loader(texts, {"image": Image(".png", size=8), "narrow": Narrow()}))
    assert caught.value.member == str(wide)
