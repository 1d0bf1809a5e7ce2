"""`make test-gpu`: pictures of many shapes put into a batch on a real card, by our kernel beside torch's own."""

import numpy as np
import pytest
import torch

from penstock.flow.fields import Image
from penstock.flow.oncard.placing import find_placing, in_one_launch, shape_by_shape

if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed")

SHAPES = [(300 + 7 * number, 500 - 5 * number) for number in range(40)]
SIDES = (160, 224)


@pytest.fixture(scope="module")
def pictures():
    """Noise: what is a pixel off shows."""
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.integers(0, 256, (3, *shape), np.uint8)).cuda() for shape in SHAPES]


def placed(place, image, pictures):
    out = torch.full((64, 3, *SIDES) if image.layout == "CHW" else (64, *SIDES, 3), 77, dtype=torch.uint8).cuda()
    place(image, [(slot + slot // 2, picture) for slot, picture in enumerate(pictures)], out)
    return out.cpu().int()


def test_the_kernel_works_here():
    assert find_placing(Image(".jpg", size=SIDES), torch.device("cuda")) is in_one_launch


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_its_pixels_are_those_of_torch_to_a_level(pictures, fit, layout):
    image = Image(".jpg", size=SIDES, fit=fit, layout=layout, quality="exact")
    apart = (placed(in_one_launch, image, pictures) - placed(shape_by_shape, image, pictures)).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.15  # torch resizes in float16 here


@pytest.mark.filterwarnings("ignore")  # the profiler's own
def test_forty_shapes_are_one_launch(pictures):
    image = Image(".jpg", size=SIDES, quality="exact")
    placed(in_one_launch, image, pictures)
    out = torch.empty((64, 3, *SIDES), dtype=torch.uint8, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        in_one_launch(image, [*enumerate(pictures)], out)
        torch.cuda.synchronize()
    kernels = [event.name for event in seen.events() if "Memcpy" not in event.name and "ynchron" not in event.name]
    assert len([name for name in kernels if "place_all" in name]) == 1, kernels
