"""The kinds of shards that the loaders are compared on, and the shapes and types of a batch of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock import Array, Image, Label, RandomResizedCrop
from penstock.data.fields import Field
from penstock.testing import IMAGENET, REID, SA1B, Preset
from penstock.testing.presets import ArraySpec, NpzSpec

SHARDS = 8
"""Peers give whole shards to their workers: 8 shards are an even share for 1, 2 and 4 workers."""


@dataclass(frozen=True)
class Size:
    """The size of a run. All batches are complete, because not every peer delivers an incomplete last one."""

    samples: int
    batch_size: int


@dataclass(frozen=True)
class Kind:
    """One kind of shards and the batches that every loader has to make of them."""

    name: str
    preset: Preset
    fields: Mapping[str, Field]
    outputs: Mapping[str, tuple[tuple[int, ...], str]]
    """Shape and dtype of one sample, by field."""
    full: Size
    """About four seconds of work for the fastest loader on two cores."""
    quick: Size
    """A few samples, to check that everything runs."""

    def size(self, quick: bool) -> Size:
        return self.quick if quick else self.full

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of a sample's parts, in their order in the shards."""
        groups = self.preset.images, self.preset.npzs, self.preset.notes
        return tuple(spec.suffix for specs in groups for spec in specs)

    @property
    def random(self) -> bool:
        """Whether images are cropped at random, so that no two runs deliver the same values."""
        return self.image.crop is not None

    @property
    def image(self) -> Image:
        field = self.fields["image"]
        assert isinstance(field, Image)
        return field

    def split(self, member: str) -> tuple[str, str]:
        """Return the key and the suffix of a member's name."""
        suffix = next(suffix for suffix in self.suffixes if member.endswith(suffix))
        return member[: -len(suffix)], suffix

    def keys(self, quick: bool) -> list[str]:
        return [self.preset.key(number) for number in range(self.size(quick).samples)]


def _light(preset: Preset, **other: Any) -> Preset:
    """Return the preset with images of little detail at quality 75, as recompressed datasets have them."""
    images = tuple(replace(spec, quality=75, detail=0.0) for spec in preset.images)
    return replace(preset, name=f"{preset.name}-light", images=images, **other)


_SA1B: dict[str, Any] = {
    "fields": {
        "image": Image(".jpg", size=1024),
        "features": Array("_features.npz", key="features"),
        "edge": Array("_features.npz", key="edge"),
    },
    "outputs": {
        "image": ((3, 1024, 1024), "uint8"),
        "features": ((256, 64, 64), "float16"),
        "edge": ((256, 256), "uint8"),
    },
    "quick": Size(32, 2),
}
_IMAGENET: dict[str, Any] = {
    "fields": {"image": Image(".jpg", size=224, fit="crop"), "label": Label(".cls")},
    "outputs": {"image": ((3, 224, 224), "uint8"), "label": ((), "int64")},
    "quick": Size(128, 8),
}
_CROPPED: dict[str, Any] = {
    **_IMAGENET,
    "fields": {
        "image": Image(".jpg", size=224, crop=RandomResizedCrop(), flip=0.5),
        "label": Label(".cls"),
    },
}
_POSE = NpzSpec(".npz", arrays=(ArraySpec("pose", (17, 3), "float32", spatial=False),))

KINDS = {
    "sa1b": Kind(name="SA-1B-like", preset=_light(SA1B), full=Size(768, 24), **_SA1B),
    "sa1b-heavy": Kind(name="SA-1B-like, heavy images", preset=SA1B, full=Size(480, 24), **_SA1B),
    "imagenet": Kind(name="ImageNet-like", preset=_light(IMAGENET), full=Size(8192, 128), **_IMAGENET),
    "imagenet-heavy": Kind(name="ImageNet-like, heavy images", preset=IMAGENET, full=Size(4096, 128), **_IMAGENET),
    "imagenet-crop": Kind(name="ImageNet-like, RandomResizedCrop", preset=IMAGENET, full=Size(4096, 128), **_CROPPED),
    "reid": Kind(
        name="ReID-like",
        preset=_light(REID, npzs=(_POSE,), notes=()),
        fields={"image": Image(".jpg", size=(256, 128), fit="stretch"), "pose": Array(".npz", key="pose")},
        outputs={"image": ((3, 256, 128), "uint8"), "pose": ((17, 3), "float32")},
        full=Size(20_480, 256),
        quick=Size(256, 16),
    ),
}
"""`imagenet-crop` is what trainings of classifiers do; the other kinds have the same output in every run.

Large and medium images come twice: light (0.2 MB and 20 KB per JPEG), and heavy, as cameras write them (0.6 MB and
90 KB).

The heavier the JPEG, the smaller the differences between loaders, because all of them decode the same Huffman codes.
"""
