"""MixUp and CutMix: a `batch_transform` that mixes each image of a batch, and its label, with another one.

The formulas are those of torchvision's transforms of the same names: each sample is mixed with the one before it, and
one fraction is drawn for the whole batch. Images and labels may be on any device; nothing is read back from a GPU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from penstock.errors import SettingError

MAX_CHANNELS = 4
"""Images are taken to be (height, width, channels) if their last axis is not longer."""


@dataclass(frozen=True, kw_only=True)
class _Mix(ABC):
    """A transform of a batch that mixes images and labels."""

    alpha: float
    classes: int
    image: str = "image"
    label: str = "label"

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise SettingError(f"alpha={self.alpha} is not above 0", advice="Use 0.2, for example")
        if self.classes < 1:
            raise SettingError(f"classes={self.classes} is not a number of classes")

    def __call__(self, batch: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the batch with mixed images and, as float32 (batch, classes), mixed labels."""
        images, labels = (self._tensor(batch, name) for name in (self.image, self.label))
        if len(images) != len(labels):
            raise SettingError(f"{self.image!r} has {len(images)} samples and {self.label!r} has {len(labels)}")
        soft = self._soft_labels(labels)
        images, kept = self._mixed(images, float(rng.beta(self.alpha, self.alpha)), rng)
        return {**batch, self.image: images, self.label: soft * kept + soft.roll(1, 0) * (1 - kept)}

    @abstractmethod
    def _mixed(self, images: torch.Tensor, kept: float, rng: np.random.Generator) -> tuple[torch.Tensor, float]:
        """Return the mixed images, and the fraction of each image that is left of it."""

    def _tensor(self, batch: Mapping[str, Any], name: str) -> torch.Tensor:
        found = batch.get(name) if isinstance(batch, Mapping) else None
        if not isinstance(found, torch.Tensor):
            kind = "missing" if found is None else type(found).__name__
            raise SettingError(
                f"{type(self).__name__} mixes tensors, and {name!r} of the batch is {kind}",
                advice="Give the names of the fields with image and label, images of one size and no device='numpy'",
            )
        return found

    def _soft_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Return labels as probabilities of all classes; refuse a label that is no class, where it can be checked."""
        if labels.dim() == 2 and labels.is_floating_point() and labels.shape[1] == self.classes:
            return labels.float()
        if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
            raise SettingError(
                f"{self.label!r} is {labels.dtype}{list(labels.shape)}, which are no labels of {self.classes} classes",
                advice="Give one whole number per sample, or the probabilities of all classes",
            )
        soft = one_hot(labels, self.classes)
        if labels.device.type == "cpu" and soft.isnan().any():  # the host would have to wait for a GPU
            wrong = int(labels[soft[:, 0].isnan()][0])
            raise SettingError(f"the label {wrong} is not one of {self.classes} classes, which begin with 0")
        return soft


def one_hot(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Return a row for each label: 1 for its class and 0 for the others; NaN for a label that is no class."""
    numbers = labels.long()[:, None]
    rows = (numbers == torch.arange(classes, device=labels.device)).float()
    return rows.where((numbers >= 0) & (numbers < classes), math.nan)


@dataclass(frozen=True, kw_only=True)
class MixUp(_Mix):
    """`batch_transform=MixUp(alpha=0.2, classes=1000)`: adds each image and label to the one before it, with weights.

    The weight is drawn from Beta(alpha, alpha) once per batch. Images of whole numbers are rounded. `image` and `label`
    are the names of the fields; labels become float32, (batch, classes), which torch's cross_entropy takes.
    """

    alpha: float = 0.2

    def _mixed(self, images: torch.Tensor, kept: float, rng: np.random.Generator) -> tuple[torch.Tensor, float]:
        values = images if images.is_floating_point() else images.float()
        mixed = values * kept + values.roll(1, 0) * (1 - kept)
        return (mixed if images.is_floating_point() else mixed.round().to(images.dtype)), kept


@dataclass(frozen=True, kw_only=True)
class CutMix(_Mix):
    """`batch_transform=CutMix(alpha=1.0, classes=1000)`: replaces a rectangle of each image by that of the one before.

    The rectangle is the same in the whole batch. Labels are mixed by its area. `image` and `label` are the names of the
    fields; labels become float32, (batch, classes).
    """

    alpha: float = 1.0
    layout: Literal["CHW", "HWC"] = "CHW"

    def _mixed(self, images: torch.Tensor, kept: float, rng: np.random.Generator) -> tuple[torch.Tensor, float]:
        if images.dim() != 4 or (self.layout == "CHW") == (images.shape[-1] <= MAX_CHANNELS):
            raise SettingError(
                f"{self.image!r} of shape {list(images.shape)} is no batch of {self.layout} images",
                advice="Give CutMix the layout of the images",
            )
        height, width = images.shape[2:] if self.layout == "CHW" else images.shape[1:3]
        top, bottom, left, right = cut_box(height, width, kept, rng)
        rows, columns = slice(top, bottom), slice(left, right)
        area = (slice(None), slice(None), rows, columns) if self.layout == "CHW" else (slice(None), rows, columns)
        mixed = images.clone()
        mixed[area] = images.roll(1, 0)[area]
        return mixed, 1 - (bottom - top) * (right - left) / (height * width)


def cut_box(height: int, width: int, kept: float, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return the first and last row and column of a rectangle of about a fraction 1 - `kept` of the area.

    Its centre is drawn uniformly, and what lies outside the image is cut off.
    """
    centre_x, centre_y = int(rng.integers(width)), int(rng.integers(height))
    half = 0.5 * math.sqrt(1 - kept)
    half_width, half_height = int(half * width), int(half * height)
    rows = max(centre_y - half_height, 0), min(centre_y + half_height, height)
    return (*rows, max(centre_x - half_width, 0), min(centre_x + half_width, width))
