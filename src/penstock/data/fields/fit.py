"""The arithmetic of fitting a picture into a size. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fit = Literal["pad", "crop", "stretch", "short"]


@dataclass(frozen=True, slots=True)
class FitGeometry:
    """Resize the picture to height × width, cut `top` and `left` off, and put it at the upper left of the output."""

    height: int
    width: int
    top: int
    left: int
    out_height: int
    out_width: int

    @property
    def covered(self) -> tuple[int, int]:
        """Rows and columns of the output that hold picture; the rest is padding."""
        return min(self.height - self.top, self.out_height), min(self.width - self.left, self.out_width)


def fit_geometry(height: int, width: int, size: tuple[int, int], fit: Fit) -> FitGeometry:
    """Where a height × width picture goes.

    pad: all of it, as large as it fits, the rest black below or to the right. crop: scaled to cover, the middle kept.
    stretch: scaled to exactly that size. short: the shorter side gets size[0], nothing cut or padded.
    """
    out_height, out_width = size
    if fit == "stretch":
        return FitGeometry(out_height, out_width, 0, 0, out_height, out_width)
    if fit == "short":
        scaled = _scale(height, width, out_height, min(height, width))
        return FitGeometry(*scaled, 0, 0, *scaled)
    # compare the aspect ratios in whole numbers: no float decides whether a row is cut
    wide = width * out_height > height * out_width
    by_width = wide if fit == "pad" else not wide
    scaled = _scale(height, width, out_width, width) if by_width else _scale(height, width, out_height, height)
    if fit == "pad":
        return FitGeometry(*scaled, 0, 0, out_height, out_width)
    return FitGeometry(*scaled, (scaled[0] - out_height) // 2, (scaled[1] - out_width) // 2, out_height, out_width)


def _scale(height: int, width: int, target: int, reference: int) -> tuple[int, int]:
    """Both sides times target / reference, rounded half up, at least 1."""
    return tuple(max(1, (2 * side * target + reference) // (2 * reference)) for side in (height, width))  # type: ignore[return-value]
