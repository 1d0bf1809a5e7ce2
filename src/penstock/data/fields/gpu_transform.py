"""The declaration of the transforms of a batch of images after the copy; `data.device.transform` applies them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import SettingError

Three = tuple[float, float, float]


@dataclass(frozen=True)
class GpuTransform:
    """`GpuTransform("float16", mean=…, std=…, flip=0.5)`: from pixels 0…255 to the input of a model.

    The host copies bytes; the transform runs on the GPU where there is one, and gives the same result on a CPU. Random
    choices are made for each sample from the loader's seed, the epoch and the sample.
    """

    dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    mean: Three = (0.0, 0.0, 0.0)
    """Subtracted from each colour channel, on a scale of 0…1."""
    std: Three = (1.0, 1.0, 1.0)
    """Each colour channel is divided by this after the mean is subtracted."""
    layout: Literal["nchw", "channels_last"] = "nchw"
    """Memory layout of the (samples, 3, height, width) result."""
    size: int | tuple[int, int] | None = None
    """Height and width of the result, resized with antialiasing; None keeps the size of the field."""
    crop: Literal["none", "centre", "random"] = "none"
    """none: the whole image is resized. centre, random: a window of `size` is cut out and not resized."""
    flip: float = 0.0
    """Probability that the image is mirrored horizontally."""
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Brightness, contrast, saturation: factors within 1 ± the number; hue: rotated by ± this part of a circle."""

    def __post_init__(self) -> None:
        _check_known("dtype", self.dtype, ("float16", "bfloat16", "float32"))
        _check_known("layout", self.layout, ("nchw", "channels_last"))
        if not isinstance(self.crop, str):
            raise SettingError(
                f"crop={self.crop!r}: a window that is resized is drawn by the image field, on the original image",
                advice="Give the field crop=RandomResizedCrop(scale=…)",
            )
        _check_known("crop", self.crop, ("none", "centre", "random"))
        if self.crop != "none" and self.size is None:
            raise SettingError(f"crop={self.crop!r} needs a size")
        if self.size is not None and min(self.output_size((1, 1))) < 1:
            raise SettingError(f"an image of size {self.size} has no pixels")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(each > 0 for each in self.std):
            raise SettingError("mean and std are three numbers each, and std is above 0")
        if not 0 <= self.flip <= 1:
            raise SettingError(f"flip={self.flip} is not a probability", advice="Use 0.5 for every other image")
        if len(self.jitter) != 4 or not all(0 <= each <= 1 for each in self.jitter) or self.jitter[3] > 0.5:
            raise SettingError(
                f"jitter={self.jitter} is not (brightness, contrast, saturation, hue)",
                advice="The first three are within 0..1, hue within 0..0.5",
            )

    def output_size(self, input_size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the result for images of the input size."""
        if self.size is None:
            return input_size
        return (self.size, self.size) if isinstance(self.size, int) else (self.size[0], self.size[1])

    def check_fits(self, input_size: tuple[int, int]) -> None:
        """Raise a SettingError if a window to be cut out is larger than the images."""
        if self.crop != "none":
            for window, side in zip(self.output_size(input_size), input_size, strict=True):
                if window > side:
                    raise SettingError(
                        f"a window of {self.size} cannot be cut out of {input_size[0]}×{input_size[1]}",
                        advice="Give the field a larger size, or the gpu_transform a smaller one",
                    )


def _check_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingError(f"{name} {value!r} is not known", advice=f"Use one of {', '.join(known)}")
