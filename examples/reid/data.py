"""Made-up people: crops, and a note on each of who it is, in what light, seen by which camera."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from penstock.testing import REID, Preset
from penstock.testing.presets import NoteSpec

LIGHTS = ("rgb", "ir", "sketch")
CAMERAS = 6
ONE_LIGHT = 9
"""One person in so many was seen in RGB alone: of the report's 320, 285 can be paired."""


def crops(people: int) -> Preset:
    """Of so many."""

    def note(index: int, rng: np.random.Generator) -> str:
        person = index % people
        light = "rgb" if person % ONE_LIGHT == 0 else LIGHTS[rng.integers(len(LIGHTS))]
        return json.dumps({"identity": person, "camera": int(rng.integers(CAMERAS)), "modality": light})

    return replace(REID, notes=(NoteSpec(".json", note),))
