"""Endless textures with the 1/f spectrum of natural pictures, made once per process.

Each is a tile that repeats seamlessly, so any window of it is as good as any other and costs no copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_TILE = 1024
"""Side of a tile, and so the period after which a texture repeats."""

_Value = TypeVar("_Value", np.float32, np.int16)


def crop(
    texture: Callable[[int, int], NDArray[_Value]], height: int, width: int, rng: np.random.Generator
) -> NDArray[_Value]:
    """A window of that size anywhere in an endless texture, without a copy."""
    top, left = rng.integers(_TILE, size=2)
    tiled = texture(-(-height // _TILE) + 1, -(-width // _TILE) + 1)
    return tiled[top : top + height, left : left + width]


@functools.lru_cache(maxsize=4)
def coarse_texture(rows: int, columns: int) -> NDArray[np.float32]:
    """Clouds, foliage, rock: all scales at once, unit variance; as many tiles as asked for."""
    return np.tile(spectral_noise(slope=1.0, longest_period=_TILE), (rows, columns))


@functools.lru_cache(maxsize=4)
def fine_texture(rows: int, columns: int) -> NDArray[np.int16]:
    """Only what a small scene cannot hold, in grey levels; too short-waved for its repeats to be seen."""
    tile = spectral_noise(slope=1.0, longest_period=48) * 17
    return np.tile(np.rint(tile).astype(np.int16), (rows, columns))


@functools.lru_cache(maxsize=4)
def sensor_noise(rows: int, columns: int) -> NDArray[np.int16]:
    """What a camera adds in good light, in grey levels."""
    tile = np.random.default_rng(1).normal(0, 1.3, (_TILE, _TILE))
    return np.tile(np.rint(tile).astype(np.int16), (rows, columns))


@functools.lru_cache(maxsize=4)
def spectral_noise(slope: float, longest_period: int) -> NDArray[np.float32]:
    """A seamless tile of unit variance: amplitude falls as 1/frequency**slope, nothing below the cut."""
    rng = np.random.default_rng(0)
    down, across = np.fft.fftfreq(_TILE)[:, None], np.fft.rfftfreq(_TILE)
    frequency = np.hypot(down, across)
    amplitude = np.zeros_like(frequency)
    kept = frequency >= 1 / longest_period
    amplitude[kept] = frequency[kept] ** -slope
    phase = rng.uniform(0, 2 * np.pi, frequency.shape)
    tile = np.fft.irfft2(amplitude * np.exp(1j * phase), s=(_TILE, _TILE))
    return np.asarray(tile / tile.std(), np.float32)
