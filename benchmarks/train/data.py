"""Synthetic data like that of field report 003: 14,910 crops of 320 people, three modalities, six cameras."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from penstock.testing import REID, make_shards
from penstock.testing.presets import NoteSpec

SAMPLES, IDENTITIES, CAMERAS = 14_910, 320, 6
PER_BATCH, INSTANCES = 8, 4
"""Identities in a batch, and samples of each."""
MODALITIES = ("rgb", "ir", "sketch")
RGB_ONLY_EVERY = 9
"""One identity in this many has rgb samples only: in the report, 285 of 320 identities can be paired."""


def make(folder: Path, samples: int = SAMPLES) -> Path:
    """Write the samples as shards, and return their folder."""
    preset = replace(REID, notes=(NoteSpec(".json", _note),))
    make_shards(folder / "shards", preset, samples=samples, shards=8)
    return folder / "shards"


def unpack(shards: Path, folder: Path) -> list[Path]:
    """Write the same samples as loose files, as the report's team had them; return the images, in order."""
    for shard in sorted(shards.glob("*.tar")):
        with tarfile.open(shard) as tar:
            tar.extractall(folder, filter="data")
    return sorted(folder.glob("*.jpg"))


def _note(index: int, rng: np.random.Generator) -> str:
    identity = index % IDENTITIES
    modality = "rgb" if identity % RGB_ONLY_EVERY == 0 else MODALITIES[rng.integers(len(MODALITIES))]
    return json.dumps({"identity": identity, "camera": int(rng.integers(CAMERAS)), "modality": modality})
