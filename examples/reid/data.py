"""Synthetic people: crops, each with a note of its identity, its light and its camera."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from penstock.testing import REID, Preset
from penstock.testing.presets import NoteSpec

LIGHTS = ("rgb", "ir", "sketch")
CAMERAS = 6
RGB_ONLY_EVERY = 9
"""One person in nine has RGB images only: of the report's 320 people, 285 can be paired."""


def crops(people: int) -> Preset:
    """Return the preset of crops of that many people."""

    def note(index: int, rng: np.random.Generator) -> str:
        person = index % people
        light = "rgb" if person % RGB_ONLY_EVERY == 0 else LIGHTS[rng.integers(len(LIGHTS))]
        return json.dumps({"identity": person, "camera": int(rng.integers(CAMERAS)), "modality": light})

    return replace(REID, notes=(NoteSpec(".json", note),))
