"""Makes one sample of a preset, as bytes: the same bytes for the same numbers.

This holds with the same versions of numpy, OpenCV and libjpeg-turbo, because another encoder writes other bytes.
"""

from __future__ import annotations

import io
import math
import zlib
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from penstock.errors import SettingError
from penstock.testing.images import make_image, spectral_noise
from penstock.testing.presets import ArraySpec, ImageSpec, NpzSpec, Preset

_MIN_SIDE = 8
"""Smallest side of an image in pixels at any scale: one JPEG block."""
_CONTOUR = 0.02
"""Values of a smooth field within ± this many standard deviations count as an edge."""


def sample_parts(preset: Preset, index: int, seed: int = 0, scale: float = 1.0) -> dict[str, bytes]:
    """Return the parts of sample number `index` by suffix; they depend only on these four arguments.

    `scale` shrinks the sides of images and feature maps; 0.1 makes tests fast.
    """
    if index < 0 or seed < 0:
        raise SettingError(f"sample number and seed start at 0, not {min(index, seed)}")
    if not (math.isfinite(scale) and scale > 0):
        raise SettingError(f"scale={scale} is not a number above 0")
    rng = np.random.default_rng([seed, zlib.crc32(preset.name.encode()), index])
    parts = {spec.suffix: _jpeg(spec, scale, rng) for spec in preset.images}
    parts |= {spec.suffix: _npz(spec, scale, rng) for spec in preset.npzs}
    parts |= {spec.suffix: spec.write(index, rng).encode() for spec in preset.notes}
    return parts


def _jpeg(spec: ImageSpec, scale: float, rng: np.random.Generator) -> bytes:
    height, width = spec.sizes[rng.integers(len(spec.sizes))]
    pixels = make_image(_scaled(height, scale, _MIN_SIDE), _scaled(width, scale, _MIN_SIDE), rng, spec.detail)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=spec.quality, colorsubsampling="420"))


def _npz(spec: NpzSpec, scale: float, rng: np.random.Generator) -> bytes:
    arrays: dict[str, Any] = {array.name: _array(array, scale, rng) for array in spec.arrays}
    buffer = io.BytesIO()
    save = np.savez_compressed if spec.compressed else np.savez
    save(buffer, **arrays)
    return buffer.getvalue()


def _array(spec: ArraySpec, scale: float, rng: np.random.Generator) -> NDArray[np.generic]:
    shape = spec.shape
    if spec.spatial:
        shape = (*shape[:-2], *(_scaled(side, scale, 1) for side in shape[-2:]))
    values = _smooth_values(math.prod(shape), rng).reshape(shape)
    if spec.dtype == "uint8":
        return np.where(np.abs(values) < _CONTOUR, np.uint8(255), np.uint8(0))
    return values.astype(spec.dtype)


def _smooth_values(count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return values from a random offset of a pool, times a random factor."""
    # With a spectrum this steep, deflate reduces float16 features to about 80 %.
    pool = spectral_noise(slope=2.0, longest_period=1024).ravel()
    start = rng.integers(pool.size)
    run = np.take(pool, np.arange(start, start + count), mode="wrap")
    return run * np.float32(rng.uniform(0.5, 2))


def _scaled(side: int, scale: float, least: int) -> int:
    return max(least, round(side * scale))
