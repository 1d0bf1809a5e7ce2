"""The loader of field report 004: loose files, Pillow, small batches, eight workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from examples.common.data import loose_files
from examples.segment.data import CAMERAS, GROUND

Sample = dict[str, Tensor]


class BeforeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the report's config."""

    batch_size: int
    accumulate: int
    workers: int


class CameraDataset(Dataset[Sample]):
    """Six images and a map per sample, each from a file of its own."""

    def __init__(self, shards: Path, size: Sequence[int]) -> None:
        maps = [path for path in loose_files(shards) if path.name.endswith(GROUND)]
        self.prefixes = [str(path).removesuffix(GROUND) for path in maps]
        self.height, self.width = size

    def __len__(self) -> int:
        return len(self.prefixes)

    def __getitem__(self, index: int) -> Sample:
        prefix = self.prefixes[index]
        images = {camera: self._image(prefix + camera) for camera in CAMERAS}
        return {**images, "lines": torch.from_numpy(np.load(prefix + GROUND)["lines"])}

    def _image(self, path: str) -> Tensor:
        """Resize the image to cover the size and crop its centre."""
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        scale = max(self.width / image.width, self.height / image.height)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = (image.width - self.width) // 2, (image.height - self.height) // 2
        image = image.crop((left, top, left + self.width, top + self.height))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def file_loader(
    shards: Path, size: Sequence[int], *, shuffle: bool, batch_size: int, workers: int
) -> DataLoader[Sample]:
    """Return the report's DataLoader as it was before pin_memory and prefetch_factor were set."""
    return DataLoader(
        CameraDataset(shards, size),
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )
