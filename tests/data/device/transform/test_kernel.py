"""The kernel that finishes pictures, run by Triton's interpreter on the CPU, beside what torch makes of them."""

import sys

import numpy as np
import pytest
import torch
from tests.support.triton_interpreter import count_launches, interpreted

from penstock.data.device.transform.apply import TorchTransform
from penstock.data.device.transform.draw import draw_transforms
from penstock.data.device.transform.launch import KernelTransform
from penstock.data.fields import GpuTransform

CASES = {
    "normalised": GpuTransform("float16", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)),
    "mirrored": GpuTransform(flip=0.5, layout="channels_last"),
    "resized": GpuTransform(size=(11, 17)),
    "enlarged": GpuTransform(size=(20, 31), flip=0.5),
    "cut out": GpuTransform(size=12, crop="random", flip=0.5, layout="channels_last"),
    "coloured": GpuTransform(jitter=(0.4, 0.4, 0.4, 0.1)),
    "everything": GpuTransform("float16", size=(13, 24), crop=(0.1, 1.0), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1)),
}
SAMPLES, HEIGHT, WIDTH = 3, 15, 28  # a tile and a part of one


def batch():
    """Noise, in which what is a pixel off shows; as (samples, 3, height, width) and once more, lying otherwise."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (SAMPLES, 3, HEIGHT, WIDTH), np.uint8))
    return pixels, pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def drawn_for(finish):
    """Of which some are mirrored, and some are not."""
    drawn = draw_transforms(finish, (HEIGHT, WIDTH), 3, 0, np.arange(SAMPLES))
    assert drawn.flips is None or 0 < drawn.flips.sum() < SAMPLES
    return drawn


def interpret(path):
    from penstock.data.device.transform import kernel

    launches = count_launches(kernel, "transform_kernel")
    found = {}
    for name, finish in CASES.items():
        before = len(launches)
        for how, pixels in zip(("planes", "pixels"), batch(), strict=True):
            out = KernelTransform(finish, pixels.device)(pixels, drawn_for(finish))
            found[f"{name}, {how}"], found[f"{name}, strides"] = out.numpy(), np.array(out.stride())
        found[f"{name}, launches"] = np.array(len(launches) - before)
    np.savez(path, **found)


if __name__ == "__main__":
    interpret(sys.argv[1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return interpreted(__file__, tmp_path_factory)


@pytest.mark.parametrize("name", CASES)
def test_what_comes_out_is_what_torch_makes_however_the_bytes_lie(found, name):
    finish = CASES[name]
    expected = TorchTransform(finish, torch.device("cpu"))(batch()[0], drawn_for(finish))
    tolerance = 2e-5 if finish.dtype == "float32" else 2e-3
    for how in ("planes", "pixels"):
        given = torch.from_numpy(found[f"{name}, {how}"])
        assert given.dtype == expected.dtype
        assert torch.allclose(given.float(), expected.float(), atol=tolerance)
    assert tuple(found[f"{name}, strides"]) == expected.stride()


def test_it_takes_one_launch_and_two_where_colours_depend_on_a_picture_s_mean(found):
    launches = {name: int(found[f"{name}, launches"]) / 2 for name in CASES}
    assert launches == {name: 2 if any(finish.jitter) else 1 for name, finish in CASES.items()}


def test_a_device_on_which_the_kernel_does_not_work_is_torch_s(monkeypatch, caplog):
    from penstock.data.device.transform import launch

    class OnCard(torch.Tensor):
        is_cuda = True

    def fails(self, pixels, drawn):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(launch.KernelTransform, "__call__", fails)
    finish = CASES["normalised"]
    with caplog.at_level("INFO", "penstock"):
        finishing = launch.choose_transform(finish, batch()[0].as_subclass(OnCard), drawn_for(finish))
    assert isinstance(finishing, TorchTransform)
    assert "no compiler" in caplog.text
