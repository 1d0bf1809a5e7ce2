from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
import simplejpeg

from penstock.errors import SettingError
from penstock.testing import IMAGENET, MULTICAMERA, PRESETS, REID, SA1B, sample_parts

KB = 1000


def load(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as npz:
        return dict(npz)


def test_sa1b_samples_have_the_sizes_of_the_real_ones():
    for index in range(2):
        parts = sample_parts(SA1B, index)
        assert list(parts) == [".jpg", "_features.npz"]
        assert simplejpeg.decode_jpeg_header(parts[".jpg"])[:2] == (1500, 2250)
        assert 400 * KB < len(parts[".jpg"]) < 1000 * KB
        arrays = load(parts["_features.npz"])
        assert (arrays["features"].shape, arrays["features"].dtype) == ((256, 64, 64), np.float16)
        assert (arrays["edge"].shape, arrays["edge"].dtype) == ((256, 256), np.uint8)
        assert np.isfinite(arrays["features"]).all()
        assert set(np.unique(arrays["edge"])) == {0, 255}
        raw = sum(array.nbytes for array in arrays.values())
        assert 0.6 < len(parts["_features.npz"]) / raw < 0.9


def test_imagenet_samples_vary_in_size_within_the_real_range():
    samples = [sample_parts(IMAGENET, index) for index in range(12)]
    assert all(40 * KB < len(parts[".jpg"]) < 130 * KB for parts in samples)
    assert len({simplejpeg.decode_jpeg_header(parts[".jpg"])[:2] for parts in samples}) > 1
    assert {parts[".cls"] for parts in samples} >= {b"0", b"1"}


def test_reid_samples_are_small_and_have_identity_camera_and_modality():
    samples = [sample_parts(REID, index) for index in range(12)]
    assert all(4 * KB < len(parts[".jpg"]) < 12 * KB for parts in samples)
    notes = [json.loads(parts[".json"]) for parts in samples]
    assert {note["modality"] for note in notes} == {"rgb", "ir", "sketch"}
    assert len({note["identity"] for note in notes}) == 2
    assert REID.key(0) == f"{notes[0]['identity']:04d}_c{notes[0]['camera']}s1_000451"


def test_multicamera_samples_have_six_views_and_a_calibration_that_is_not_scaled():
    parts = sample_parts(MULTICAMERA, 0, scale=0.1)
    views = [suffix for suffix in parts if suffix.endswith(".jpg")]
    assert len(views) == 6
    assert {simplejpeg.decode_jpeg_header(parts[view])[:2] for view in views} == {(45, 80)}
    assert load(parts[".calib.npz"])["intrinsics"].shape == (6, 3, 3)
    assert load(parts[".calib.npz"])["extrinsics"].shape == (6, 4, 4)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_keys_are_unique(preset):
    assert len({preset.key(index) for index in range(5000)}) == 5000


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_content_depends_on_seed_and_number_only(preset):
    wanted = sample_parts(preset, 3, seed=7, scale=0.1)
    sample_parts(preset, 2, seed=7, scale=0.1)
    assert sample_parts(preset, 3, seed=7, scale=0.1) == wanted
    assert sample_parts(preset, 4, seed=7, scale=0.1) != wanted
    assert sample_parts(preset, 3, seed=8, scale=0.1) != wanted


def test_an_npz_has_no_time_in_it():
    data = sample_parts(SA1B, 0, scale=0.05)["_features.npz"]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_DEFLATED}


@pytest.mark.parametrize(
    "numbers",
    [
        {"index": -1},
        {"index": 0, "seed": -1},
        {"index": 0, "scale": 0.0},
        {"index": 0, "scale": float("nan")},
    ],
)
def test_invalid_numbers_are_refused(numbers):
    with pytest.raises(SettingError):
        sample_parts(REID, **numbers)
