"""The transform settings that are refused when they are declared."""

import pytest

from penstock.data.fields import GpuTransform, Image
from penstock.errors import SettingError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float64"}, "dtype 'float64'"),
        ({"layout": "hwc"}, "layout 'hwc'"),
        ({"crop": "left"}, "crop 'left'"),
        ({"crop": "random"}, "needs a size"),
        ({"crop": (0.08, 1.0), "size": 8}, "drawn by the image field, on the original image"),
        ({"size": 0}, "no pixels"),
        ({"std": (1.0, 0.0, 1.0)}, "std is above 0"),
        ({"flip": 2.0}, "not a probability"),
        ({"jitter": (0.1, 0.1, 0.1, 0.9)}, "brightness, contrast"),
    ],
)
def test_invalid_transforms_are_refused_when_declared(settings, message):
    with pytest.raises(SettingError, match=message):
        GpuTransform(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpu_transform": GpuTransform()}, "one shape"),
        ({"size": 8, "fit": "short", "decode": "gpu"}, "one shape"),
        ({"size": 8, "dtype": "float32", "gpu_transform": GpuTransform()}, "dtype='uint8'"),
        ({"size": 8, "gpu_transform": GpuTransform(size=9, crop="centre")}, "cannot be cut out of 8×8"),
        ({"size": 8, "decode": "tpu"}, "decode 'tpu'"),
    ],
)
def test_image_fields_that_do_not_fit_their_gpu_settings_are_refused_when_declared(settings, message):
    with pytest.raises(SettingError, match=message):
        Image(".jpg", **settings)
