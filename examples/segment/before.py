"""The loader of field report 004: loose files, Pillow, small batches, as many workers as seemed enough."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from examples.common.material import loose_files
from examples.segment.data import CAMERAS, GROUND

Sample = dict[str, Tensor]


class Before(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Their config's."""

    batch_size: int
    accumulate: int
    workers: int


class Moments(Dataset[Sample]):
    """Six pictures and a map, each from a file of its own."""

    def __init__(self, shards: Path, size: Sequence[int]) -> None:
        maps = [path for path in loose_files(shards) if path.name.endswith(GROUND)]
        self.moments = [str(path).removesuffix(GROUND) for path in maps]
        self.height, self.width = size

    def __len__(self) -> int:
        return len(self.moments)

    def __getitem__(self, index: int) -> Sample:
        moment = self.moments[index]
        pictures = {camera: self._picture(moment + camera) for camera in CAMERAS}
        return {**pictures, "lines": torch.from_numpy(np.load(moment + GROUND)["lines"])}

    def _picture(self, path: str) -> Tensor:
        """Scaled to cover the size, the middle kept."""
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
        scale = max(self.width / picture.width, self.height / picture.height)
        picture = picture.resize(
            (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BILINEAR
        )
        left, top = (picture.width - self.width) // 2, (picture.height - self.height) // 2
        picture = picture.crop((left, top, left + self.width, top + self.height))
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def file_loader(
    shards: Path, size: Sequence[int], *, shuffle: bool, batch_size: int, workers: int
) -> DataLoader[Sample]:
    """As their config has it, before it was told to pin memory and to fetch ahead."""
    return DataLoader(
        Moments(shards, size),
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=True,
    )
