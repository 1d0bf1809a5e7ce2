"""The transform by our kernel, run by Triton's interpreter on the CPU and compared with the transform by torch."""

import sys

import numpy as np
import pytest
import torch
from tests.support.triton_interpreter import count_launches, interpreted

from penstock.data.device.transform import kernel_transform
from penstock.data.device.transform.draw import draw_transforms
from penstock.data.device.transform.kernel_transform import KernelTransform, choose_transform
from penstock.data.device.transform.torch_transform import TorchTransform
from penstock.data.fields import GpuTransform

CASES = {
    "normalised": GpuTransform("float16", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)),
    "mirrored": GpuTransform(flip=0.5, layout="channels_last"),
    "resized": GpuTransform(size=(11, 17)),
    "enlarged": GpuTransform(size=(20, 31), flip=0.5),
    "cut out": GpuTransform(size=12, crop="random", flip=0.5, layout="channels_last"),
    "coloured": GpuTransform(jitter=(0.4, 0.4, 0.4, 0.1)),
    "everything": GpuTransform("float16", size=(13, 24), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1)),
}
SAMPLES, HEIGHT, WIDTH = 3, 15, 28  # pixels of one tile and a part of another


def batch():
    """Return noise, in which an error of one pixel shows: (samples, 3, height, width) in two memory layouts."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (SAMPLES, 3, HEIGHT, WIDTH), np.uint8))
    return pixels, pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def drawn_for(transform):
    """Return random choices of which some are mirrored and some are not."""
    drawn = draw_transforms(transform, (HEIGHT, WIDTH), 3, 0, np.arange(SAMPLES))
    assert drawn.flips is None or 0 < drawn.flips.sum() < SAMPLES
    return drawn


def interpret(path):
    from penstock.data.device.transform import transform_kernel

    launches = count_launches(transform_kernel, "transform_kernel")
    found = {}
    for name, transform in CASES.items():
        before = len(launches)
        for layout, pixels in zip(("planes", "pixels"), batch(), strict=True):
            out = KernelTransform(transform, pixels.device)(pixels, drawn_for(transform))
            found[f"{name}, {layout}"], found[f"{name}, strides"] = out.numpy(), np.array(out.stride())
        found[f"{name}, launches"] = np.array(len(launches) - before)
    np.savez(path, **found)


if __name__ == "__main__":
    interpret(sys.argv[1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return interpreted(__file__, tmp_path_factory)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_gives_the_result_of_torch_for_any_memory_layout(found, name):
    transform = CASES[name]
    expected = TorchTransform(transform, torch.device("cpu"))(batch()[0], drawn_for(transform))
    tolerance = 2e-5 if transform.dtype == "float32" else 2e-3
    for layout in ("planes", "pixels"):
        result = torch.from_numpy(found[f"{name}, {layout}"])
        assert result.dtype == expected.dtype
        assert torch.allclose(result.float(), expected.float(), atol=tolerance)
    assert tuple(found[f"{name}, strides"]) == expected.stride()


def test_it_takes_one_launch_or_two_where_colours_depend_on_the_mean_of_the_image(found):
    launches = {name: int(found[f"{name}, launches"]) / 2 for name in CASES}
    assert launches == {name: 2 if any(transform.jitter) else 1 for name, transform in CASES.items()}


def test_where_the_kernel_does_not_work_torch_transforms_and_the_reason_is_logged(monkeypatch, caplog):
    class GpuTensor(torch.Tensor):
        is_cuda = True

    def fail(self, pixels, drawn):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(kernel_transform.KernelTransform, "__call__", fail)
    transform = CASES["normalised"]
    with caplog.at_level("INFO", "penstock"):
        chosen = choose_transform(transform, batch()[0].as_subclass(GpuTensor), drawn_for(transform))
    assert isinstance(chosen, TorchTransform)
    assert "no compiler" in caplog.text
