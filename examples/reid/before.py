"""Sampler and loader of field report 003: loose files, every sample read again for its modality, Pillow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from benchmarks.train.uncached_sampler import LooseFiles, UncachedModalAwarePKSampler
from torch import Tensor
from torch.utils.data import DataLoader

from examples.common.data import loose_files
from examples.common.settings import SEED


class BeforeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the report's DataLoader."""

    workers: int
    prefetch: int


def crops_in(shards: Path) -> LooseFiles:
    """Return the images of the shards as files, numbered as in the shards."""
    return LooseFiles([path for path in loose_files(shards) if path.suffix == ".jpg"])


def uncached_sampler(crops: LooseFiles, identities: int, instances: int) -> UncachedModalAwarePKSampler:
    """Return the report's sampler, which runs in the training process like every batch sampler of a DataLoader."""
    return UncachedModalAwarePKSampler(crops, identities, instances, SEED)


def crop_loader(crops: LooseFiles, sampler: Iterable[list[int]], before: BeforeSettings) -> DataLoader[Any]:
    """Return the report's DataLoader."""
    return DataLoader(
        crops,
        batch_sampler=sampler,
        num_workers=before.workers,
        prefetch_factor=before.prefetch if before.workers else None,
        persistent_workers=before.workers > 0,
        collate_fn=compatible_collate_fn,
    )


def compatible_collate_fn(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Collate crops of any modality, each of which is the only image of its sample."""
    return {
        "image": torch.stack([next(iter(sample["images"].values())) for sample in samples]),
        "identity": torch.tensor([sample["identity"] for sample in samples]),
    }
