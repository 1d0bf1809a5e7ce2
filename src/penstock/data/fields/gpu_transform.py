"""What is still done to a batch of pictures after the copy: declared here, done in `flow.finishing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import SettingError

Three = tuple[float, float, float]


@dataclass(frozen=True)
class GpuTransform:
    """`GpuTransform("float16", mean=…, std=…, size=224, crop=(0.08, 1.0), flip=0.5)`: pixels 0…255 become what a model eats.

    The host ships bytes; the rest happens on the GPU where there is one, with the same result elsewhere. Chance is
    thrown for each sample by the loader's seed, the epoch and the sample.
    """

    dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    mean: Three = (0.0, 0.0, 0.0)
    """Of each colour, 0…1; subtracted."""
    std: Three = (1.0, 1.0, 1.0)
    """Divided by, after that."""
    layout: Literal["nchw", "channels_last"] = "nchw"
    """How (samples, 3, height, width) lies in memory."""
    size: int | tuple[int, int] | None = None
    """Comes out, resized with antialiasing; as the field has it if not given."""
    crop: Literal["none", "centre", "random"] | tuple[float, float] = "none"
    """none: all of the picture is resized. centre, random: a window of `size` is cut out, not resized. Two numbers: a
    window with a share of the area between them, its sides between 3:4 and 4:3 to each other, is resized."""
    flip: float = 0.0
    """How likely left and right change places."""
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Brightness, contrast, saturation: times 1 ± so much; hue: turned by ± so much of the full circle."""

    def __post_init__(self) -> None:
        _check_known("dtype", self.dtype, ("float16", "bfloat16", "float32"))
        _check_known("layout", self.layout, ("nchw", "channels_last"))
        if isinstance(self.crop, str):
            _check_known("crop", self.crop, ("none", "centre", "random"))
        elif not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise SettingError(f"crop={self.crop} is not two shares of the area", advice="For example (0.08, 1.0)")
        if self.crop != "none" and self.size is None:
            raise SettingError(f"crop={self.crop!r} needs a size")
        if self.size is not None and min(self.out((1, 1))) < 1:
            raise SettingError(f"a picture of size {self.size} has no pixels")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(each > 0 for each in self.std):
            raise SettingError("mean and std are three numbers each, and std is above 0")
        if not 0 <= self.flip <= 1:
            raise SettingError(f"flip={self.flip} is not a probability", advice="Use 0.5 for every other picture")
        if len(self.jitter) != 4 or not all(0 <= each <= 1 for each in self.jitter) or self.jitter[3] > 0.5:
            raise SettingError(
                f"jitter={self.jitter} is not (brightness, contrast, saturation, hue)",
                advice="The first three are within 0..1, hue within 0..0.5",
            )

    def out(self, given: tuple[int, int]) -> tuple[int, int]:
        """Height and width of what comes out, of pictures of that height and width."""
        if self.size is None:
            return given
        return (self.size, self.size) if isinstance(self.size, int) else (self.size[0], self.size[1])

    def check_fits(self, given: tuple[int, int]) -> None:
        """A window that is cut out lies inside the picture."""
        if self.crop in ("centre", "random"):
            for wanted, side in zip(self.out(given), given, strict=True):
                if wanted > side:
                    raise SettingError(
                        f"a window of {self.size} cannot be cut out of {given[0]}×{given[1]}",
                        advice="Give the field a larger size, or the gpu_transform a smaller one",
                    )


def _check_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingError(f"{name} {value!r} is not known", advice=f"Use one of {', '.join(known)}")
