"""The kinds of shards that are raced over, and what a batch of each has to look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock import Array, Image, Label
from penstock.data.fields import Field
from penstock.testing import IMAGENET, REID, SA1B, Preset
from penstock.testing.presets import ArraySpec, NpzSpec

SHARDS = 8
"""Peers deal whole shards to their workers: enough for an even share at 1, 2 and 4."""


@dataclass(frozen=True)
class Size:
    """How many samples, and how many of them make a batch; whole batches, because not every peer delivers the rest."""

    samples: int
    batch_size: int


@dataclass(frozen=True)
class Kind:
    name: str
    preset: Preset
    fields: Mapping[str, Field]
    outputs: Mapping[str, tuple[tuple[int, ...], str]]
    """Shape and dtype of one sample's part of each tensor."""
    full: Size
    """About four seconds for the fastest contestant on two cores."""
    quick: Size

    def size(self, quick: bool) -> Size:
        return self.quick if quick else self.full

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of a sample's members, as they lie in the shards."""
        groups = self.preset.images, self.preset.npzs, self.preset.notes
        return tuple(spec.suffix for specs in groups for spec in specs)

    @property
    def image(self) -> Image:
        field = self.fields["image"]
        assert isinstance(field, Image)
        return field

    def split(self, member: str) -> tuple[str, str]:
        """A member's name as the key of its sample and its suffix."""
        suffix = next(suffix for suffix in self.suffixes if member.endswith(suffix))
        return member[: -len(suffix)], suffix

    def keys(self, quick: bool) -> list[str]:
        return [self.preset.key(number) for number in range(self.size(quick).samples)]


def _light(preset: Preset, **other: Any) -> Preset:
    """With pictures of little detail at quality 75, as recompressed datasets have them."""
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
_POSE = NpzSpec(".npz", arrays=(ArraySpec("pose", (17, 3), "float32", spatial=False),))

KINDS = {
    "sa1b": Kind(name="SA-1B-like", preset=_light(SA1B), full=Size(768, 24), **_SA1B),
    "sa1b-heavy": Kind(name="SA-1B-like, heavy pictures", preset=SA1B, full=Size(480, 24), **_SA1B),
    "imagenet": Kind(name="ImageNet-like", preset=_light(IMAGENET), full=Size(8192, 128), **_IMAGENET),
    "imagenet-heavy": Kind(name="ImageNet-like, heavy pictures", preset=IMAGENET, full=Size(4096, 128), **_IMAGENET),
    "reid": Kind(
        name="ReID-like",
        preset=_light(REID, npzs=(_POSE,), notes=()),
        fields={"image": Image(".jpg", size=(256, 128), fit="stretch"), "pose": Array(".npz", key="pose")},
        outputs={"image": ((3, 256, 128), "uint8"), "pose": ((17, 3), "float32")},
        full=Size(20_480, 256),
        quick=Size(256, 16),
    ),
}
"""Large and middling pictures twice: light (0.2 MB and 20 KB a JPEG), and heavy as cameras make them (0.6 MB, 90 KB).

The heavier the JPEG, the more alike all loaders are: the same Huffman codes are read by all of them.
"""
