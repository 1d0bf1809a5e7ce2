"""A synthetic drive: six images per sample, and lines on the ground seen from above."""

from __future__ import annotations

from dataclasses import replace

from penstock.testing import MULTICAMERA
from penstock.testing.presets import ArraySpec, NpzSpec

CAMERAS = tuple(spec.suffix for spec in MULTICAMERA.images)
"""Suffixes of the cameras' images."""
GROUND = ".bev.npz"
DRIVE = replace(
    MULTICAMERA,
    images=tuple(replace(spec, sizes=((900, 1600),), quality=70) for spec in MULTICAMERA.images),
    npzs=(*MULTICAMERA.npzs, NpzSpec(GROUND, (ArraySpec("lines", (200, 200), "uint8"),))),
)
