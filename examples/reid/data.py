"""Synthetic crops of people, each with a JSON file that gives its identity, modality and camera."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from penstock.testing import REID, Preset
from penstock.testing.presets import NoteSpec

MODALITIES = ("rgb", "ir", "sketch")
CAMERAS = 6
RGB_ONLY_EVERY = 9
"""One person in nine has RGB images only: of the report's 320 people, 285 can be paired."""


def crops(people: int) -> Preset:
    """Return the preset of crops of that many people."""

    def note(index: int, rng: np.random.Generator) -> str:
        person = index % people
        modality = "rgb" if person % RGB_ONLY_EVERY == 0 else MODALITIES[rng.integers(len(MODALITIES))]
        return json.dumps({"identity": person, "camera": int(rng.integers(CAMERAS)), "modality": modality})

    return replace(REID, notes=(NoteSpec(".json", note),))
