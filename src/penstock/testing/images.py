"""Generated images with the spectrum and the JPEG size of photographs, made fast enough to fill shards.

A small scene is painted (sky, ground, a few objects, light from one side) and enlarged; fine texture and sensor noise
are added from a pool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from penstock.errors import SettingError

_TILE = 1024
"""Side of a tile in pixels, which is the period of a texture."""

_Value = TypeVar("_Value", np.float32, np.int16)


def crop(
    texture: Callable[[int, int], NDArray[_Value]], height: int, width: int, rng: np.random.Generator
) -> NDArray[_Value]:
    """Return a window of that size at a random place of an endless texture, without a copy."""
    top, left = rng.integers(_TILE, size=2)
    tiled = texture(-(-height // _TILE) + 1, -(-width // _TILE) + 1)
    return tiled[top : top + height, left : left + width]


@functools.lru_cache(maxsize=4)
def coarse_texture(rows: int, columns: int) -> NDArray[np.float32]:
    """Return tiles of a texture with all scales, like clouds, foliage and rock, of unit variance."""
    return np.tile(spectral_noise(slope=1.0, longest_period=_TILE), (rows, columns))


@functools.lru_cache(maxsize=4)
def fine_texture(rows: int, columns: int) -> NDArray[np.int16]:
    """Return tiles of the detail that a small scene lacks, in grey levels; too fine for its period to be visible."""
    tile = spectral_noise(slope=1.0, longest_period=48) * 17
    return np.tile(np.rint(tile).astype(np.int16), (rows, columns))


@functools.lru_cache(maxsize=4)
def sensor_noise(rows: int, columns: int) -> NDArray[np.int16]:
    """Return tiles of the noise of a camera in good light, in grey levels."""
    tile = np.random.default_rng(1).normal(0, 1.3, (_TILE, _TILE))
    return np.tile(np.rint(tile).astype(np.int16), (rows, columns))


@functools.lru_cache(maxsize=4)
def spectral_noise(slope: float, longest_period: int) -> NDArray[np.float32]:
    """Return a seamless tile of unit variance whose amplitude falls as 1/frequency**slope, without longer periods."""
    rng = np.random.default_rng(0)
    down, across = np.fft.fftfreq(_TILE)[:, None], np.fft.rfftfreq(_TILE)
    frequency = np.hypot(down, across)
    amplitude = np.zeros_like(frequency)
    kept = frequency >= 1 / longest_period
    amplitude[kept] = frequency[kept] ** -slope
    phase = rng.uniform(0, 2 * np.pi, frequency.shape)
    tile = np.fft.irfft2(amplitude * np.exp(1j * phase), s=(_TILE, _TILE))
    return np.asarray(tile / tile.std(), np.float32)


_SCENE_SIDE = 300
"""Largest shorter side of the small scene in pixels; stronger enlargement gives softer edges."""
_FULL_DETAIL = 125.0
"""Value of a scene's detail plane at which the fine texture has full contrast."""

_LUMA = 0
"""Index of the first of a scene's planes: luma, red chroma, blue chroma, and the amount of fine texture."""


def make_image(height: int, width: int, seed: int | np.random.Generator, detail: float = 1.0) -> NDArray[np.uint8]:
    """Return a photograph-like RGB image of shape (height, width, 3), the same for the same seed.

    `detail` scales fine texture and noise: 0 gives an image out of focus, whose JPEG is a quarter as long.
    """
    if height < 1 or width < 1:
        raise SettingError(f"an image of {height}×{width} pixels cannot be made")
    rng = np.random.default_rng(seed)
    shrink = -(-min(height, width) // _SCENE_SIDE)
    scene = _scene(-(-height // shrink), -(-width // shrink), rng)
    luma, red, blue, roughness = (cv2.resize(plane, (width, height)) for plane in scene)
    texture = crop(fine_texture, height, width, rng)
    noise = crop(sensor_noise, height, width, rng)
    relief = cv2.multiply(texture, roughness, scale=1 / _FULL_DETAIL, dtype=cv2.CV_16S)
    relief = cv2.addWeighted(relief, detail, noise, detail, 0)
    luma = cv2.add(luma, relief, dtype=cv2.CV_8U)
    return np.asarray(cv2.cvtColor(cv2.merge((luma, red, blue)), cv2.COLOR_YCrCb2RGB), np.uint8)


def _scene(height: int, width: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Paint sky over ground with objects in front, lit from one side; return planes (4, height, width)."""
    texture = crop(coarse_texture, height, width, rng)
    canvas = _sky(height, rng) + texture * _planes(7, 1.5, -2, 8)
    ridge = height * (rng.uniform(0.25, 0.7) + 0.05 * cv2.blur(texture[:1], (1 + width // 12, 1)))
    ground = np.clip(np.arange(height, dtype=np.float32)[:, None] - ridge, 0, 1)
    canvas += (_tone(rng) + texture * _planes(16, 2, -2, 22) - canvas) * ground
    for _ in range(rng.integers(4, 9)):
        _paint_object(canvas, rng)
    canvas[_LUMA] *= _light(height, width, rng)
    return np.clip(canvas, 0, 255).astype(np.uint8)


def _planes(luma: float, red: float, blue: float, detail: float) -> NDArray[np.float32]:
    return np.array([luma, red, blue, detail], np.float32)[:, None, None]


def _sky(height: int, rng: np.random.Generator) -> NDArray[np.float32]:
    top = _planes(rng.uniform(110, 190), rng.uniform(105, 125), rng.uniform(130, 155), 15)
    bottom = _planes(rng.uniform(170, 225), rng.uniform(122, 140), rng.uniform(115, 135), 25)
    return top + (bottom - top) * np.linspace(0, 1, height, dtype=np.float32)[:, None]


def _tone(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the mean colour of a surface; colours near grey are more frequent than vivid ones."""
    red, blue = rng.normal(128, 11, size=2)
    return _planes(rng.uniform(45, 190), red, blue, rng.uniform(20, 160))


def _paint_object(canvas: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Paint a rounded object with its own tone and texture, shaded from above, into the canvas."""
    height, width = canvas.shape[1:]
    size = max(2.0, min(height, width) * rng.uniform(0.08, 0.32))
    centre = rng.uniform((0, height * 0.2), (width, height))
    outline = _outline(rng) * size + centre
    left, top = np.maximum(outline.min(axis=0).astype(int) - 2, 0)
    right, bottom = np.minimum(outline.max(axis=0).astype(int) + 3, (width, height))
    box = canvas[:, top:bottom, left:right]
    stencil = np.zeros(box.shape[1:], np.uint8)
    corners = ((outline - (left, top)) * 16).astype(np.int32)
    cv2.fillPoly(stencil, [corners], 255, lineType=cv2.LINE_AA, shift=4)
    texture = crop(coarse_texture, bottom - top, right - left, rng)
    surface = _tone(rng) + texture * _planes(12, 3, 3, 15)
    surface[_LUMA] += np.linspace(22, -22, bottom - top, dtype=np.float32)[:, None]
    box += (surface - box) * (stencil.astype(np.float32) / 255)


def _outline(rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a closed curve of about unit radius: a circle distorted by a few harmonics and squeezed."""
    angle = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    radius = np.ones_like(angle)
    for harmonic in range(2, 6):
        radius += rng.normal(0, 0.22 / harmonic) * np.cos(harmonic * angle + rng.uniform(0, 2 * np.pi))
    squeeze = rng.uniform(0.5, 1.3)
    return np.stack((radius * np.cos(angle) * squeeze, radius * np.sin(angle) / squeeze), axis=1)


def _light(height: int, width: int, rng: np.random.Generator) -> NDArray[np.float32]:
    across, down = rng.uniform(-0.25, 0.25, size=2)
    ramp_across = np.linspace(-across, across, width, dtype=np.float32)
    ramp_down = np.linspace(-down, down, height, dtype=np.float32)[:, None]
    return 1 + ramp_across + ramp_down
