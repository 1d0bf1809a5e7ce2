"""The sampler of field report 003 before it was fixed, rebuilt from its description in the report.

`infer_modalities_of_sample` is called for each sample of each batch, and each call reads the sample to infer its
modality: 1863 batches × 32 samples = 59,616 calls per epoch (14,910 samples // 8 identities = 1863).
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
    """A dataset of image files as the report's team read them: opened with Pillow, resized, converted to a tensor.

    The identities are known without reading the images.
    """

    def __init__(self, images: Sequence[Path]) -> None:
        self.images = images
        self.identities = [json.loads(path.with_suffix(".json").read_text())["identity"] for path in images]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self.images[index]
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB").resize((128, 256), Image.Resampling.BILINEAR))
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).float().div(255)
        note = json.loads(path.with_suffix(".json").read_text())
        return {"images": {note["modality"]: tensor}, "identity": note["identity"], "camera": note["camera"]}


def infer_modalities_of_sample(dataset: LooseFiles, index: int) -> set[str]:
    """Read the sample, and return the modalities of its images that are not empty."""
    return {modality for modality, image in dataset[index]["images"].items() if image.any()}


class UncachedModalAwarePKSampler:
    """Batches of P identities × K instances: at least one rgb instance if there is any, different modalities first.

    The modality of a sample is read again each time that it is drawn.
    """

    def __init__(self, dataset: LooseFiles, identities: int, instances: int, seed: int = 42) -> None:
        self.dataset = dataset
        self.identities, self.instances = identities, instances
        self.calls = 0
        self._rng = Random(seed)
        self._by_identity: dict[int, list[int]] = defaultdict(list)
        for index, identity in enumerate(dataset.identities):
            self._by_identity[identity].append(index)

    def __len__(self) -> int:
        return len(self.dataset) // self.identities

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            chosen = self._rng.sample(sorted(self._by_identity), self.identities)
            yield [index for identity in chosen for index in self._instances_of(identity)]

    def _instances_of(self, identity: int) -> list[int]:
        known = self._by_identity[identity]
        picked = (
            self._rng.sample(known, self.instances)
            if len(known) >= self.instances
            else self._rng.choices(known, k=self.instances)
        )
        by_modality: dict[str, list[int]] = defaultdict(list)
        for index in picked:
            for modality in self._infer(index):
                by_modality[modality].append(index)
        if "rgb" not in by_modality:
            others = (index for index in self._rng.sample(known, len(known)) if index not in picked)
            picked[-1] = next((index for index in others if "rgb" in self._infer(index)), picked[-1])
        firsts = [indices[0] for indices in by_modality.values() if indices[0] in picked]
        return firsts + [index for index in picked if index not in firsts]

    def _infer(self, index: int) -> set[str]:
        self.calls += 1
        return infer_modalities_of_sample(self.dataset, index)
