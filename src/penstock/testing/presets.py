"""Descriptions of the samples of well-known kinds of datasets: keys, images, arrays, labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NoteWriter = Callable[[int, np.random.Generator], str]
"""A function from a sample's number and a random generator to the text of a part."""


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """One JPEG of a sample."""

    suffix: str
    sizes: tuple[tuple[int, int], ...]
    """(height, width) of images; one is drawn for each sample."""
    quality: int
    """JPEG quality, chosen so that files are as large as those of the real dataset."""
    detail: float = 1.0
    """Factor of fine texture and noise; 0 makes a small JPEG, which costs less to decode."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of an NPZ: floats vary smoothly around 0, uint8 holds thin contours of 255 on 0."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    spatial: bool = True
    """Whether the last two axes are a map over the image, which shrinks with it."""


@dataclass(frozen=True, slots=True)
class NpzSpec:
    """One NPZ of a sample."""

    suffix: str
    arrays: tuple[ArraySpec, ...]
    compressed: bool = True
    """Whether it is deflated as by `np.savez_compressed`, or stored as by `np.savez`."""


@dataclass(frozen=True, slots=True)
class NoteSpec:
    """One small text part of a sample, such as a label or JSON."""

    suffix: str
    write: NoteWriter


@dataclass(frozen=True, slots=True)
class Preset:
    """A kind of dataset: its keys, and the parts of a sample."""

    name: str
    key: Callable[[int], str]
    """A function from a sample's number to its key; different numbers give different keys."""
    images: tuple[ImageSpec, ...]
    npzs: tuple[NpzSpec, ...] = ()
    notes: tuple[NoteSpec, ...] = ()


_SYNSETS = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331", "n01498041")
_MODALITIES = ("rgb", "ir", "sketch")
_VIEWS_PER_PERSON = 6
_FRAMES_PER_SCENE = 40
_CAMERAS = ("front", "front_left", "front_right", "back", "back_left", "back_right")


def _sa1b_key(index: int) -> str:
    return f"sa_{index + 1:06d}"


def _imagenet_key(index: int) -> str:
    return f"{_SYNSETS[index % len(_SYNSETS)]}_{10000 + index}"


def _imagenet_class(index: int, _rng: np.random.Generator) -> str:
    return str(index % len(_SYNSETS))


def _person_and_camera(index: int) -> tuple[int, int]:
    return 2 + index // _VIEWS_PER_PERSON, 1 + index % _VIEWS_PER_PERSON


def _reid_key(index: int) -> str:
    person, camera = _person_and_camera(index)
    return f"{person:04d}_c{camera}s1_{451 + 25 * index:06d}"


def _reid_note(index: int, rng: np.random.Generator) -> str:
    person, camera = _person_and_camera(index)
    modality = _MODALITIES[rng.integers(len(_MODALITIES))]
    return json.dumps({"identity": person, "camera": camera, "modality": modality})


def _multicamera_key(index: int) -> str:
    scene, frame = divmod(index, _FRAMES_PER_SCENE)
    return f"scene-{scene + 1:04d}_{frame:06d}"


SA1B = Preset(
    name="sa1b",
    key=_sa1b_key,
    images=(ImageSpec(".jpg", sizes=((1500, 2250),), quality=82),),
    npzs=(
        NpzSpec(
            "_features.npz",
            arrays=(
                ArraySpec("features", (256, 64, 64), "float16"),
                ArraySpec("edge", (256, 256), "uint8"),
            ),
        ),
    ),
)
"""Distillation: a large photo (0.4–1 MB) and its teacher's features (2 MB raw)."""

IMAGENET = Preset(
    name="imagenet",
    key=_imagenet_key,
    images=(ImageSpec(".jpg", sizes=((375, 500), (500, 375), (333, 500), (400, 500), (480, 480)), quality=95),),
    notes=(NoteSpec(".cls", _imagenet_class),),
)
"""Classification: a photo of varied size (40–130 KB) and its class number."""

REID = Preset(
    name="reid",
    key=_reid_key,
    images=(ImageSpec(".jpg", sizes=((256, 128),), quality=85),),
    notes=(NoteSpec(".json", _reid_note),),
)
"""Person re-identification: a small crop (4–12 KB) with the identity, the camera and the modality."""

MULTICAMERA = Preset(
    name="multicamera",
    key=_multicamera_key,
    images=tuple(ImageSpec(f".{camera}.jpg", sizes=((450, 800),), quality=88) for camera in _CAMERAS),
    npzs=(
        NpzSpec(
            ".calib.npz",
            arrays=(
                ArraySpec("intrinsics", (len(_CAMERAS), 3, 3), "float64", spatial=False),
                ArraySpec("extrinsics", (len(_CAMERAS), 4, 4), "float64", spatial=False),
            ),
            compressed=False,
        ),
    ),
)
"""Driving: the images of six cameras at one moment, named as webdataset does, and their calibration."""

PRESETS = {preset.name: preset for preset in (SA1B, IMAGENET, REID, MULTICAMERA)}
"""All presets by name, for command lines."""
