"""The kinds of shards that are raced over, and what a batch of each has to look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock import Array, Image, Label
from penstock.flow.fields import Field
from penstock.testing import IMAGENET, REID, SA1B, Preset

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


_IMAGENET: dict[str, Any] = {
    "fields": {"image": Image(".jpg", size=224, fit="crop"), "label": Label(".cls")},
    "outputs": {"image": ((3, 224, 224), "uint8"), "label": ((), "int64")},
    "quick": Size(128, 8),
}

KINDS = {
    "sa1b": Kind(
        name="SA-1B-like",
        preset=SA1B,
        fields={
            "image": Image(".jpg", size=1024),
            "features": Array("_features.npz", key="features"),
            "edge": Array("_features.npz", key="edge"),
        },
        outputs={
            "image": ((3, 1024, 1024), "uint8"),
            "features": ((256, 64, 64), "float16"),
            "edge": ((256, 256), "uint8"),
        },
        full=Size(480, 24),
        quick=Size(32, 2),
    ),
    "imagenet": Kind(
        name="ImageNet-like",
        preset=replace(IMAGENET, name="imagenet-q75", images=(replace(IMAGENET.images[0], quality=75),)),
        full=Size(8192, 128),
        **_IMAGENET,
    ),
    "originals": Kind(
        name="ImageNet-like, originals",
        preset=IMAGENET,
        full=Size(4096, 128),
        **_IMAGENET,
    ),
    "reid": Kind(
        name="ReID-like",
        preset=REID,
        fields={
            "image": Image(".jpg", size=(256, 128), fit="stretch"),
            "identity": Label(".json", key="identity"),
            "camera": Label(".json", key="camera"),
        },
        outputs={"image": ((3, 256, 128), "uint8"), "identity": ((), "int64"), "camera": ((), "int64")},
        full=Size(20_480, 256),
        quick=Size(256, 16),
    ),
}
"""ImageNet-like twice: as many store it (quality 75, some 33 KB a picture), and as it was published (some 90 KB).

The heavier the JPEG, the more alike all loaders are: the same Huffman codes are read by all of them.
"""
