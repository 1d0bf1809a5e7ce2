"""The random choices of a GpuTransform for each sample of a batch: crop window, mirroring, colours. Without torch.

They are a few numbers per sample, drawn at once for the batch on the host; only these numbers are sent to the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.core.types import Floats, Ids
from penstock.data.decode.rng import uniform_draws
from penstock.data.fields.gpu_transform import GpuTransform

RANDOM_NUMBERS = 7
"""Random numbers for each sample, used or not, so that the choices for one setting do not depend on the others."""
GREY = np.array([0.299, 0.587, 0.114])
"""Perceived brightness of each colour."""
_TO_YIQ = np.array([GREY, [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""Brightness, and two colour axes in whose plane a hue is an angle."""
_FROM_YIQ = np.linalg.inv(_TO_YIQ)


@dataclass(frozen=True, slots=True)
class DrawnTransforms:
    """The random choices for each sample of a batch."""

    boxes: NDArray[np.float32] | None
    """Top, left, height and width of the window that is resized; None where all images stay whole and as they are."""
    flips: NDArray[np.bool_] | None
    """Whether each image is mirrored."""
    colours: NDArray[np.float32] | None
    """The rows of a 3×3 colour matrix, then the factor of the image's mean grey that is added to all colours."""


def draw_transforms(
    transform: GpuTransform, input_size: tuple[int, int], seed: int, epoch: int, samples: Ids
) -> DrawnTransforms:
    """Draw the choices for images of that height and width."""
    uniform = uniform_draws(seed, epoch, samples, RANDOM_NUMBERS)
    return DrawnTransforms(
        _boxes(transform, input_size, uniform[:, :2]).astype(np.float32)
        if transform.output_size(input_size) != input_size or transform.crop != "none"
        else None,
        uniform[:, 2] < transform.flip if transform.flip else None,
        _colours(transform.jitter, uniform[:, 3:7]) if any(transform.jitter) else None,
    )


def _boxes(transform: GpuTransform, input_size: tuple[int, int], uniform: Floats) -> Ids:
    sides = np.tile(np.array(input_size, np.int64), (len(uniform), 1))
    if transform.crop == "none":
        return np.hstack((np.zeros_like(sides), sides))
    windows = sides * 0 + transform.output_size(input_size)
    margins = sides - windows
    if transform.crop == "centre":
        return np.hstack((margins // 2, windows))
    corners = np.floor(uniform * (margins + 1)).astype(np.int64)
    return np.hstack((corners, windows))


def _colours(jitter: tuple[float, float, float, float], uniform: Floats) -> NDArray[np.float32]:
    """Return brightness, contrast, saturation and hue, applied in this order, as one linear step.

    Each is linear, and none changes the hue of a grey. Hue is rotated in the plane of the two colour axes, as
    television sets do it, not on the hexagon of HSV.
    """
    brightness, contrast, saturation = (
        1 + amount * (2 * uniform[:, index] - 1) for index, amount in enumerate(jitter[:3])
    )
    angles = 2 * math.pi * jitter[3] * (2 * uniform[:, 3] - 1)
    rotations = np.zeros((len(uniform), 3, 3))
    rotations[:, 0, 0] = 1
    rotations[:, 1, 1] = rotations[:, 2, 2] = saturation * np.cos(angles)
    rotations[:, 2, 1] = saturation * np.sin(angles)
    rotations[:, 1, 2] = -rotations[:, 2, 1]
    matrices = (contrast * brightness)[:, None, None] * (_FROM_YIQ @ rotations @ _TO_YIQ)
    grey_factor = ((1 - contrast) * brightness)[:, None]
    return np.hstack((matrices.reshape(-1, 9), grey_factor)).astype(np.float32)
