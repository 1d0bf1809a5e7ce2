"""What chance has in store for each sample of a batch: which window, mirrored or not, which colours. Without torch.

All of it is a few numbers per sample, thrown at once for the batch; the card is sent the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.data.decode.rng import global_rngs
from penstock.data.fields.gpu_transform import GpuTransform

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

DICE = 9
"""Thrown for each sample, used or not: what one setting makes of them does not depend on the others."""
RATIOS = math.log(3 / 4), math.log(4 / 3)
"""Of a window's width to its height, on a scale on which narrow and wide are alike."""
GREY = np.array([0.299, 0.587, 0.114])
"""How bright each colour seems."""
_TO_YIQ = np.array([GREY, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""Brightness, and two axes of colour in whose plane a hue is an angle."""
_FROM_YIQ = np.linalg.inv(_TO_YIQ)


@dataclass(frozen=True, slots=True)
class DrawnTransforms:
    """For each sample of a batch."""

    boxes: NDArray[np.float32] | None
    """Top, left, height and width of the window that is resized; None where all of every picture stays as it is."""
    flips: NDArray[np.bool_] | None
    colours: NDArray[np.float32] | None
    """Three rows of a matrix on the three colours, then how much of the picture's mean grey is added to all of them."""


def draw_transforms(
    finish: GpuTransform, given: tuple[int, int], seed: int, epoch: int, samples: Ids
) -> DrawnTransforms:
    """For pictures of that height and width."""
    dice = global_rngs(seed, epoch, samples, DICE)
    return DrawnTransforms(
        _boxes(finish, given, dice[:, :4]).astype(np.float32)
        if finish.output_size(given) != given or finish.crop != "none"
        else None,
        dice[:, 4] < finish.flip if finish.flip else None,
        _colours(finish.jitter, dice[:, 5:9]) if any(finish.jitter) else None,
    )


def _boxes(finish: GpuTransform, given: tuple[int, int], dice: Floats) -> Ids:
    sides = np.tile(np.array(given, np.int64), (len(dice), 1))
    if finish.crop == "none":
        return np.hstack((np.zeros_like(sides), sides))
    windows = (
        _shares(finish.crop, given, dice) if isinstance(finish.crop, tuple) else sides * 0 + finish.output_size(given)
    )
    room = sides - windows
    if finish.crop == "centre":
        return np.hstack((room // 2, windows))
    corners = np.floor(dice[:, :2] * (room + 1)).astype(np.int64)
    return np.hstack((corners, windows))


def _shares(area: tuple[float, float], given: tuple[int, int], dice: Floats) -> Ids:
    """Windows of some share of the area; one too long for the picture is as long as the picture."""
    pixels = (area[0] + (area[1] - area[0]) * dice[:, 2]) * given[0] * given[1]
    ratios = np.exp(RATIOS[0] + (RATIOS[1] - RATIOS[0]) * dice[:, 3])
    windows = np.stack((np.sqrt(pixels / ratios), np.sqrt(pixels * ratios)), axis=1)
    fitting: Ids = np.clip(np.rint(windows).astype(np.int64), 1, given)
    return fitting


def _colours(jitter: tuple[float, float, float, float], dice: Floats) -> NDArray[np.float32]:
    """Brightness, contrast, saturation, hue, in this order, as one step: each is linear, and none changes a grey's hue.

    A hue is turned in the plane of the two colour axes, as television sets do it, not on the hexagon of HSV.
    """
    bright, contrast, saturation = (1 + amount * (2 * dice[:, at] - 1) for at, amount in enumerate(jitter[:3]))
    angles = 2 * math.pi * jitter[3] * (2 * dice[:, 3] - 1)
    in_plane = np.zeros((len(dice), 3, 3))
    in_plane[:, 0, 0] = 1
    in_plane[:, 1, 1] = in_plane[:, 2, 2] = saturation * np.cos(angles)
    in_plane[:, 2, 1] = saturation * np.sin(angles)
    in_plane[:, 1, 2] = -in_plane[:, 2, 1]
    matrices = (contrast * bright)[:, None, None] * (_FROM_YIQ @ in_plane @ _TO_YIQ)
    lift = ((1 - contrast) * bright)[:, None]
    return np.hstack((matrices.reshape(-1, 9), lift)).astype(np.float32)
