"""The transform by torch on the CPU, compared with torch's own functions on one image at a time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from penstock.data.device.transform import torch_transform
from penstock.data.device.transform.draw import draw_transforms
from penstock.data.device.transform.torch_transform import TorchTransform
from penstock.data.fields import GpuTransform
from penstock.testing import make_image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def pixels():
    """Eight images (3, 60, 80)."""
    return torch.stack([torch.from_numpy(make_image(60, 80, seed).transpose(2, 0, 1).copy()) for seed in range(8)])


def transformed(pixels, seed=1, epoch=0, samples=None, **settings):
    transform = GpuTransform(**settings)
    numbers = np.arange(len(pixels)) if samples is None else np.array(samples)
    drawn = draw_transforms(transform, tuple(pixels.shape[2:]), seed, epoch, numbers)
    return TorchTransform(transform, pixels.device)(pixels, drawn), drawn


def normalised(pixels):
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def test_bytes_become_normalised_numbers(pixels):
    found, _ = transformed(pixels, mean=MEAN, std=STD)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert torch.allclose(found, normalised(pixels), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_dtype_and_layout_are_the_declared_ones(pixels, dtype, layout):
    found, _ = transformed(pixels, mean=MEAN, std=STD, dtype=dtype, layout=layout)
    assert found.dtype == getattr(torch, dtype)
    assert found.shape == pixels.shape
    memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    assert found.is_contiguous(memory_format=memory_format)
    assert torch.allclose(found.float(), normalised(pixels), atol=0.02)


def test_the_result_does_not_depend_on_the_memory_layout_of_the_input(pixels):
    other_layout = pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    settings = {"size": (30, 40), "flip": 0.5, "jitter": (0.2, 0.2, 0.2, 0.1)}
    assert torch.allclose(transformed(pixels, **settings)[0], transformed(other_layout, **settings)[0], atol=1e-5)


@pytest.mark.parametrize("size", [(30, 40), (17, 23), (90, 100), (60, 31)])
def test_resizing_equals_that_of_torch_with_antialiasing(pixels, size):
    found, _ = transformed(pixels, size=size)
    expected = interpolate(pixels.float(), size, mode="bilinear", antialias=True, align_corners=False) / 255
    assert torch.allclose(found, expected, atol=2e-4)


def test_a_resized_image_that_is_mirrored_equals_that_of_torch_mirrored(pixels):
    found, drawn = transformed(pixels, size=(24, 28), flip=0.5)
    assert drawn.flips.any()
    assert not drawn.flips.all()
    resized = interpolate(pixels.float(), (24, 28), mode="bilinear", antialias=True, align_corners=False) / 255
    for one, flip, result in zip(resized, drawn.flips, found, strict=True):
        assert torch.allclose(result, one.flip(2) if flip else one, atol=2e-4)


def test_a_window_that_is_not_resized_has_the_same_pixels(pixels):
    found, drawn = transformed(pixels, size=32, crop="random")
    for one, (top, left, _, _), result in zip(pixels, drawn.boxes.astype(int), found, strict=True):
        assert torch.equal((result * 255).round().byte(), one[:, top : top + 32, left : left + 32])


def test_the_drawn_images_are_mirrored_and_the_others_not(pixels):
    found, drawn = transformed(pixels, flip=0.5)
    for one, flip, result in zip(pixels, drawn.flips, found, strict=True):
        assert torch.equal((result * 255).round().byte(), one.flip(2) if flip else one)


def test_brightness_and_contrast_are_the_usual_ones(pixels):
    found, _ = transformed(pixels, jitter=(0.3, 0, 0, 0))
    means, original = found.mean(dim=(1, 2, 3)), pixels.float().mean(dim=(1, 2, 3)) / 255
    assert (means / original).min() < 0.95
    assert (means / original).max() > 1.05
    found, drawn = transformed(pixels, jitter=(0, 0.5, 0, 0))
    grey = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    for one, colours, result in zip(pixels, drawn.colours, found, strict=True):
        factor, middle = colours[0], (one * grey).sum(dim=0).mean()
        expected = (factor * one.float() + (1 - factor) * middle).clamp(0, 255) / 255
        assert torch.allclose(result, expected, atol=1e-4)


SETTINGS = {
    "resized": {"size": (24, 90)},
    "window": {"size": 40, "crop": "random", "flip": 0.5},
    "mirrored": {"size": 40, "flip": 0.5},
    "colours": {"jitter": (0.4, 0.4, 0.4, 0.1)},
    "everything": {"size": 40, "flip": 0.5, "jitter": (0.4, 0.4, 0.4, 0.1)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_in_half_precision_pixels_are_off_by_less_than_half_a_level(pixels, name, monkeypatch):
    expected, _ = transformed(pixels, **SETTINGS[name])
    monkeypatch.setattr(torch_transform, "compute_dtype", lambda transform, device: torch.float16)
    off = (transformed(pixels, **SETTINGS[name])[0] - expected).abs() * 255
    assert off.max() < 0.5
    assert off.square().mean().sqrt() < 0.08


def test_a_gpu_computes_in_half_precision_unless_float32_is_declared():
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert torch_transform.compute_dtype(GpuTransform("bfloat16"), gpu) == torch.float16
    assert torch_transform.compute_dtype(GpuTransform("float16"), gpu) == torch.float16
    assert torch_transform.compute_dtype(GpuTransform("float32"), gpu) == torch.float32
    assert torch_transform.compute_dtype(GpuTransform("bfloat16"), cpu) == torch.float32


def test_in_half_precision_a_window_that_is_not_resized_has_the_very_pixels(pixels, monkeypatch):
    monkeypatch.setattr(torch_transform, "compute_dtype", lambda transform, device: torch.float16)
    test_a_window_that_is_not_resized_has_the_same_pixels(pixels)


def test_the_result_of_a_sample_does_not_depend_on_its_batch(pixels):
    settings = {"size": 24, "crop": "random", "flip": 0.5, "jitter": (0.2, 0.2, 0.2, 0.1), "epoch": 3}
    whole, _ = transformed(pixels, **settings)
    alone, _ = transformed(pixels[5:6], samples=[5], **settings)
    assert torch.allclose(alone[0], whole[5], atol=1e-5)
    other, _ = transformed(pixels, **{**settings, "epoch": 4})
    assert not torch.allclose(other, whole, atol=1e-2)


def test_many_images_are_transformed_in_chunks(pixels, monkeypatch):
    settings = {"size": 24, "crop": "random", "flip": 0.5, "jitter": (0.2, 0.2, 0.2, 0.1)}
    whole, _ = transformed(pixels, **settings)
    monkeypatch.setattr(torch_transform, "CHUNK_BYTES", 3 * 12 * 60 * 80)
    assert torch.allclose(transformed(pixels, **settings)[0], whole, atol=1e-5)


def test_autocast_and_gradients_of_the_training_do_not_apply(pixels):
    settings = {"size": 24, "jitter": (0.2, 0.2, 0.2, 0.1)}
    with torch.autocast("cpu", torch.bfloat16):
        inside, _ = transformed(pixels, **settings)
    assert torch.allclose(inside, transformed(pixels, **settings)[0], atol=1e-4)
    assert not inside.requires_grad


def test_parameters_are_uploaded_in_one_copy_per_batch_and_levels_only_once(pixels, monkeypatch):
    shapes, upload = [], torch_transform.upload

    def counted(numbers, device):
        shapes.append(numbers.shape)
        return upload(numbers, device)

    monkeypatch.setattr(torch_transform, "upload", counted)
    transform = GpuTransform(size=24, crop="random", flip=0.5, jitter=(0.2, 0.2, 0.2, 0.1), mean=MEAN, std=STD)
    apply = TorchTransform(transform, pixels.device)
    for epoch in range(2):
        apply(pixels, draw_transforms(transform, (60, 80), 1, epoch, np.arange(len(pixels))))
    assert shapes == [(2, 3), (8, 5 + 5 + 12), (8, 22)]


def test_images_that_are_only_normalised_need_no_upload(pixels, monkeypatch):
    transform = GpuTransform(mean=MEAN, std=STD)
    apply = TorchTransform(transform, pixels.device)
    monkeypatch.setattr(torch_transform, "upload", lambda numbers, device: pytest.fail(f"uploaded {numbers.shape}"))
    found = apply(pixels, draw_transforms(transform, (60, 80), 1, 0, np.arange(len(pixels))))
    assert torch.allclose(found, normalised(pixels), atol=1e-5)


@pytest.mark.parametrize(("gib", "mib"), [(8, 64), (80, 320)])
def test_chunks_grow_with_the_memory_of_the_gpu(monkeypatch, gib, mib):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib << 30))
    assert torch_transform._chunk_bytes(torch.device("cuda", 0)) == mib << 20
