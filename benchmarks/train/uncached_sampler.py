"""The sampler of field report 003 before its cure, rebuilt from what the report says of it.

`infer_modalities_of_sample` is called for each sample of each batch, and each call reads the sample, infers its
modality and notes it down: 1863 batches × 32 samples = 59,616 calls an epoch (14,910 samples // 8 identities = 1863).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image


class LooseFiles:
    """Pictures as the report's team read them: Pillow, resized, as a tensor; identities are known without reading."""

    def __init__(self, pictures: Sequence[Path]) -> None:
        self.pictures = pictures
        self.identities = [json.loads(path.with_suffix(".json").read_text())["identity"] for path in pictures]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self.pictures[index]
        with Image.open(path) as picture:
            pixels = np.array(picture.convert("RGB").resize((128, 256), Image.Resampling.BILINEAR))
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).float().div(255)
        note = json.loads(path.with_suffix(".json").read_text())
        return {"images": {note["modality"]: tensor}, "identity": note["identity"], "camera": note["camera"]}


def infer_modalities_of_sample(dataset: LooseFiles, index: int) -> set[str]:
    """Read the sample, and see which pictures it has."""
    return {name for name, picture in dataset[index]["images"].items() if picture.any()}


class UncachedModalAwarePKSampler:
    """P identities × K instances, one of them rgb, different modalities first; all of it found out anew each time."""

    def __init__(self, dataset: LooseFiles, identities: int, instances: int, seed: int = 42) -> None:
        self.dataset = dataset
        self.identities, self.instances = identities, instances
        self.calls = 0
        self._dice = Random(seed)
        self._by_identity: dict[int, list[int]] = defaultdict(list)
        for index, identity in enumerate(dataset.identities):
            self._by_identity[identity].append(index)

    def __len__(self) -> int:
        return len(self.dataset) // self.identities

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            chosen = self._dice.sample(sorted(self._by_identity), self.identities)
            yield [index for identity in chosen for index in self._instances_of(identity)]

    def _instances_of(self, identity: int) -> list[int]:
        known = self._by_identity[identity]
        picked = (
            self._dice.sample(known, self.instances)
            if len(known) >= self.instances
            else self._dice.choices(known, k=self.instances)
        )
        by_modality: dict[str, list[int]] = defaultdict(list)
        for index in picked:
            for modality in self._infer(index):
                by_modality[modality].append(index)
        if "rgb" not in by_modality:
            others = (index for index in self._dice.sample(known, len(known)) if index not in picked)
            picked[-1] = next((index for index in others if "rgb" in self._infer(index)), picked[-1])
        firsts = [indices[0] for indices in by_modality.values() if indices[0] in picked]
        return firsts + [index for index in picked if index not in firsts]

    def _infer(self, index: int) -> set[str]:
        self.calls += 1
        return infer_modalities_of_sample(self.dataset, index)
