"""`make test-gpu`: pictures of many shapes put into a batch on a real card, by our kernel beside torch's own."""

from functools import partial

import numpy as np
import pytest
import torch

from penstock.data.device.gpu_decode.placement import KernelPlacement, choose_placement, place_by_shape
from penstock.data.fields import Image

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


def placed(place, layout, pictures):
    out = torch.full((64, 3, *SIDES) if layout == "CHW" else (64, *SIDES, 3), 77, dtype=torch.uint8).cuda()
    place([(slot + slot // 2, picture) for slot, picture in enumerate(pictures)], out)
    return out.cpu().int()


def test_the_kernel_works_here():
    assert isinstance(choose_placement(Image(".jpg", size=SIDES), torch.device("cuda")), KernelPlacement)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
def test_its_pixels_are_those_of_torch_to_a_level(pictures, fit, layout):
    image = Image(".jpg", size=SIDES, fit=fit, layout=layout, quality="exact")
    ours, torchs = KernelPlacement(image), partial(place_by_shape, image)
    apart = (placed(ours, layout, pictures) - placed(torchs, layout, pictures)).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.15  # torch resizes in float16 here


@pytest.mark.filterwarnings("ignore")  # the profiler's own
def test_forty_shapes_are_one_launch(pictures):
    place = KernelPlacement(Image(".jpg", size=SIDES, quality="exact"))
    placed(place, "CHW", pictures)
    out = torch.empty((64, 3, *SIDES), dtype=torch.uint8, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        place([*enumerate(pictures)], out)
        torch.cuda.synchronize()
    kernels = [event.name for event in seen.events() if "Memcpy" not in event.name and "ynchron" not in event.name]
    assert len([name for name in kernels if "place_kernel" in name]) == 1, kernels
