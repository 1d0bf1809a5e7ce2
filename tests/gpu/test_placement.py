"""`make test-gpu`: images of many shapes placed into a batch on a real GPU, by our kernel and by torch."""

from functools import partial

import numpy as np
import pytest
import torch

from penstock.data.device.gpu_decode.placement import KernelPlacement, SlottedImage, choose_placement, place_by_shape
from penstock.data.fields import Image
from penstock.data.fields.geometry import RANDOM_NUMBERS, RandomResizedCrop

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed")

SHAPES = [(300 + 7 * number, 500 - 5 * number) for number in range(40)]
SIDES = (160, 224)


@pytest.fixture(scope="module")
def images():
    """Return noise, in which an error of one pixel shows."""
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.integers(0, 256, (3, *shape), np.uint8)).cuda() for shape in SHAPES]


def slotted(field, images, slots):
    """Return the images with their slots and with the geometries that the field chooses for them."""
    rng = np.random.default_rng(1)
    return [
        SlottedImage(slot, field.geometry(*image.shape[1:], rng.random(RANDOM_NUMBERS).tolist()), image)
        for slot, image in zip(slots, images, strict=True)
    ]


def place_all(place, field, images):
    out = torch.full((64, *field.shape), 77, dtype=torch.uint8).cuda()
    place(slotted(field, images, [slot + slot // 2 for slot in range(len(images))]), out)
    return out.cpu().int()


def test_the_kernel_is_chosen():
    assert isinstance(choose_placement(Image(".jpg", size=SIDES), torch.device("cuda")), KernelPlacement)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize(
    "settings",
    [
        {"fit": "pad"},
        {"fit": "crop"},
        {"fit": "stretch", "flip": 0.5},
        {"fit": "letterbox", "fill": (200, 7, 90), "flip": 0.5},
        {"resize": 256, "crop": "center"},
        {"crop": RandomResizedCrop(), "flip": 0.5},
    ],
    ids=["pad", "crop", "mirrored", "letterbox", "centre", "random window"],
)
def test_pixels_differ_from_those_of_torch_by_one_level_at_most(images, settings, layout):
    field = Image(".jpg", size=SIDES, layout=layout, quality="exact", **settings)
    ours, torchs = KernelPlacement(field), partial(place_by_shape, field)
    difference = (place_all(ours, field, images) - place_all(torchs, field, images)).abs()
    assert difference.max() <= 1
    assert (difference > 0).float().mean() < 0.15  # torch resizes in float16 here


@pytest.mark.filterwarnings("ignore")  # warnings of the profiler
def test_forty_shapes_take_one_launch(images):
    field = Image(".jpg", size=SIDES, quality="exact")
    place = KernelPlacement(field)
    place_all(place, field, images)
    out = torch.empty((64, 3, *SIDES), dtype=torch.uint8, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        place(slotted(field, images, range(len(images))), out)
        torch.cuda.synchronize()
    kernels = [event.name for event in profile.events() if "Memcpy" not in event.name and "ynchron" not in event.name]
    assert len([name for name in kernels if "place_kernel" in name]) == 1, kernels
