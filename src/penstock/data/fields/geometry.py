"""The geometry of an image: which window of the original is resized, and where in the output it is placed.

An image field computes one `ImageGeometry` per sample. Masks and boxes that belong to the image are moved through the
same geometry, and the GPU uses it for the images that it decodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from penstock.errors import SettingError

Fit = Literal["pad", "letterbox", "crop", "stretch", "short"]

TRIES = 10
"""Windows that RandomResizedCrop draws until one lies within the image, as in torchvision."""
RANDOM_NUMBERS = 3 + 2 * TRIES
"""Random numbers for each sample: mirroring, the window's position, and area and aspect ratio of each try. All are
drawn, used or not, so that one setting does not change the choices of another."""


class Window(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class ImageGeometry:
    """How an image gets into its output.

    The window is cut out of the original and resized to height × width; `cut_top` rows and `cut_left` columns are cut
    off the result; the rest is mirrored if `mirrored` says so, and placed at (pad_top, pad_left) of the output.
    """

    image_height: int
    """Height of the original, after its EXIF rotation if that is applied."""
    image_width: int
    window: Window
    height: int
    width: int
    out_height: int
    out_width: int
    cut_top: int = 0
    cut_left: int = 0
    pad_top: int = 0
    pad_left: int = 0
    mirrored: bool = False

    @property
    def covered(self) -> tuple[int, int]:
        """Rows and columns of the output that the image covers; the rest is padding."""
        rows = min(self.height - self.cut_top, self.out_height - self.pad_top)
        return rows, min(self.width - self.cut_left, self.out_width - self.pad_left)

    @property
    def whole(self) -> bool:
        """Whether the window is the whole image."""
        return self.window == (0, 0, self.image_height, self.image_width)

    @property
    def keeps_size(self) -> bool:
        """Whether the window is neither reduced nor enlarged."""
        return (self.height, self.width) == (self.window.height, self.window.width)

    @property
    def scale(self) -> tuple[float, float]:
        """Factors (y, x) from coordinates of the original to coordinates of the output; x is negative if mirrored."""
        scale_y, scale_x = self._factors
        return scale_y, -scale_x if self.mirrored else scale_x

    @property
    def _factors(self) -> tuple[float, float]:
        """How much the window is enlarged; 0 where there is no image."""
        return self.height / max(1, self.window.height), self.width / max(1, self.window.width)

    @property
    def offset(self) -> tuple[float, float]:
        """Offsets (y, x) to add after scaling: output = original * scale + offset."""
        scale_y, scale_x = self._factors
        y = self.pad_top - self.cut_top - self.window.top * scale_y
        x = -self.cut_left - self.window.left * scale_x
        return y, self.pad_left + (self.covered[1] - x if self.mirrored else x)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random window of the original image, as torchvision's transform of the same name draws it.

    Its area is a fraction within `scale` of the image's area, and its width is a multiple within `ratio` of its height.
    If ten windows in a row do not lie within the image, the largest central window with an allowed ratio is taken.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _range("scale", self.scale))
        object.__setattr__(self, "ratio", _range("ratio", self.ratio))
        if self.scale[1] > 1:
            raise SettingError(f"scale={self.scale}: a window cannot be larger than its image", advice="Use (0.08, 1)")

    def window(self, height: int, width: int, draws: Sequence[float]) -> Window:
        """Return the window for an image of that size; `draws` are RANDOM_NUMBERS numbers between 0 and 1."""
        area = height * width
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        smallest, largest = self.scale
        for attempt in range(3, RANDOM_NUMBERS, 2):
            target = area * (smallest + (largest - smallest) * draws[attempt])
            ratio = math.exp(low + (high - low) * draws[attempt + 1])
            w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
            if 0 < w <= width and 0 < h <= height:
                return Window(int(draws[1] * (height - h + 1)), int(draws[2] * (width - w + 1)), h, w)
        h, w = height, width
        if width < self.ratio[0] * height:
            h = max(1, round(width / self.ratio[0]))
        elif width > self.ratio[1] * height:
            w = max(1, round(height * self.ratio[1]))
        return Window((height - h) // 2, (width - w) // 2, h, w)


def _range(name: str, values: tuple[float, float]) -> tuple[float, float]:
    """Return the two numbers as a tuple, if they are a range above 0; a config file gives a list."""
    if len(values) != 2 or not 0 < values[0] <= values[1] < math.inf:
        raise SettingError(f"{name}={values} is not a range of two numbers above 0")
    return values[0], values[1]


def whole_image(height: int, width: int) -> ImageGeometry:
    """Return the geometry of an image that is delivered as it is."""
    return ImageGeometry(height, width, Window(0, 0, height, width), height, width, height, width)


def no_image(height: int = 0, width: int = 0) -> ImageGeometry:
    """Return the geometry of an image that is missing, so that all of its output is padding."""
    return ImageGeometry(0, 0, Window(0, 0, 0, 0), 0, 0, height, width)


def window_geometry(
    height: int, width: int, window: Window, size: tuple[int, int], mirrored: bool = False
) -> ImageGeometry:
    """Return the geometry that resizes a window to exactly that size."""
    return ImageGeometry(height, width, window, *size, *size, mirrored=mirrored)


def centre_geometry(height: int, width: int, resize: int, size: tuple[int, int]) -> ImageGeometry:
    """Return the geometry of torchvision's Resize(resize) followed by CenterCrop(size), with its rounding.

    `resize` must not be smaller than a side of `size`.
    """
    short, long = min(height, width), max(height, width)
    scaled = max(1, resize * long // short)
    resized = (resize, scaled) if height <= width else (scaled, resize)
    cut_top, cut_left = (round((side - out) / 2) for side, out in zip(resized, size, strict=True))
    whole = Window(0, 0, height, width)
    return ImageGeometry(height, width, whole, *resized, *size, cut_top=cut_top, cut_left=cut_left)


def fit_geometry(height: int, width: int, size: tuple[int, int], fit: Fit) -> ImageGeometry:
    """Return how a height × width image fits into the size.

    pad: all of the image, as large as it fits, with padding below or to the right; letterbox: the same in the middle.
    crop: scaled to cover the output, the middle is kept. stretch: scaled to exactly that size. short: the shorter side
    becomes size[0], nothing is cut or padded.
    """
    out_height, out_width = size
    whole = Window(0, 0, height, width)
    if fit == "stretch":
        return ImageGeometry(height, width, whole, *size, *size)
    if fit == "short":
        scaled = _scale(height, width, out_height, min(height, width))
        return ImageGeometry(height, width, whole, *scaled, *scaled)
    # the aspect ratios are compared in whole numbers, so that no rounding of floats decides whether a row is cut
    wide = width * out_height > height * out_width
    by_width = wide if fit in ("pad", "letterbox") else not wide
    scaled = _scale(height, width, out_width, width) if by_width else _scale(height, width, out_height, height)
    placed = ImageGeometry(height, width, whole, *scaled, *size)
    above, left = (scaled[0] - out_height) // 2, (scaled[1] - out_width) // 2
    if fit == "crop":
        return replace(placed, cut_top=above, cut_left=left)
    if fit == "letterbox":
        return replace(placed, pad_top=(out_height - scaled[0]) // 2, pad_left=(out_width - scaled[1]) // 2)
    return placed


def _scale(height: int, width: int, target: int, reference: int) -> tuple[int, int]:
    """Return both sides times target / reference, rounded half up, at least 1."""
    return tuple(max(1, (2 * side * target + reference) // (2 * reference)) for side in (height, width))  # type: ignore[return-value]
