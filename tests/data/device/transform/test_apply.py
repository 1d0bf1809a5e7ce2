"""Pictures finished on the CPU: beside what torch's own functions make of one picture at a time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from penstock.data.device.transform import apply
from penstock.data.device.transform.apply import TorchTransform
from penstock.data.device.transform.draw import draw_transforms
from penstock.data.fields import GpuTransform
from penstock.testing import make_image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def pixels():
    """Eight pictures (3, 60, 80)."""
    return torch.stack([torch.from_numpy(make_image(60, 80, seed).transpose(2, 0, 1).copy()) for seed in range(8)])


def done(pixels, seed=1, epoch=0, samples=None, **settings):
    finish = GpuTransform(**settings)
    numbers = np.arange(len(pixels)) if samples is None else np.array(samples)
    drawn = draw_transforms(finish, tuple(pixels.shape[2:]), seed, epoch, numbers)
    return TorchTransform(finish, pixels.device)(pixels, drawn), drawn


def normalised(pixels):
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def test_bytes_become_normalised_numbers(pixels):
    found, _ = done(pixels, mean=MEAN, std=STD)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert torch.allclose(found, normalised(pixels), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_numbers_and_layout_are_the_declared_ones(pixels, dtype, layout):
    found, _ = done(pixels, mean=MEAN, std=STD, dtype=dtype, layout=layout)
    assert found.dtype == getattr(torch, dtype)
    assert found.shape == pixels.shape
    lying = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    assert found.is_contiguous(memory_format=lying)
    assert torch.allclose(found.float(), normalised(pixels), atol=0.02)


def test_however_the_bytes_lie_the_result_is_the_same(pixels):
    lying_otherwise = pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    settings = {"size": (30, 40), "flip": 0.5, "jitter": (0.2, 0.2, 0.2, 0.1)}
    assert torch.allclose(done(pixels, **settings)[0], done(lying_otherwise, **settings)[0], atol=1e-5)


@pytest.mark.parametrize("size", [(30, 40), (17, 23), (90, 100), (60, 31)])
def test_resizing_is_that_of_torch_with_antialiasing(pixels, size):
    found, _ = done(pixels, size=size)
    expected = interpolate(pixels.float(), size, mode="bilinear", antialias=True, align_corners=False) / 255
    assert torch.allclose(found, expected, atol=2e-4)


def test_windows_are_what_torch_makes_of_each_window_alone(pixels):
    found, drawn = done(pixels, size=(24, 28), crop=(0.1, 0.9), flip=0.5)
    assert drawn.flips.any()
    assert not drawn.flips.all()
    for one, box, flip, result in zip(pixels, drawn.boxes.astype(int), drawn.flips, found, strict=True):
        top, left, height, width = box
        window = one[None, :, top : top + height, left : left + width].float()
        expected = interpolate(window, (24, 28), mode="bilinear", antialias=True, align_corners=False)[0] / 255
        assert torch.allclose(result, expected.flip(2) if flip else expected, atol=2e-4)


def test_a_window_that_is_not_resized_has_the_very_pixels(pixels):
    found, drawn = done(pixels, size=32, crop="random")
    for one, (top, left, _, _), result in zip(pixels, drawn.boxes.astype(int), found, strict=True):
        assert torch.equal((result * 255).round().byte(), one[:, top : top + 32, left : left + 32])


def test_mirrored_pictures_are_mirrored_and_the_others_not(pixels):
    found, drawn = done(pixels, flip=0.5)
    for one, flip, result in zip(pixels, drawn.flips, found, strict=True):
        assert torch.equal((result * 255).round().byte(), one.flip(2) if flip else one)


def test_brightness_and_contrast_are_those_of_every_library(pixels):
    found, _ = done(pixels, jitter=(0.3, 0, 0, 0))
    means, given = found.mean(dim=(1, 2, 3)), pixels.float().mean(dim=(1, 2, 3)) / 255
    assert (means / given).min() < 0.95
    assert (means / given).max() > 1.05
    found, drawn = done(pixels, jitter=(0, 0.5, 0, 0))
    grey = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    for one, colours, result in zip(pixels, drawn.colours, found, strict=True):
        factor, middle = colours[0], (one * grey).sum(dim=0).mean()
        expected = (factor * one.float() + (1 - factor) * middle).clamp(0, 255) / 255
        assert torch.allclose(result, expected, atol=1e-4)


HALF = {
    "resized": {"size": (24, 90)},
    "window": {"size": 40, "crop": (0.1, 0.9), "flip": 0.5},
    "colours": {"jitter": (0.4, 0.4, 0.4, 0.1)},
    "everything": {"size": 40, "crop": (0.1, 0.9), "flip": 0.5, "jitter": (0.4, 0.4, 0.4, 0.1)},
}


@pytest.mark.parametrize("name", HALF)
def test_in_half_precision_a_pixel_is_off_by_less_than_half_of_one(pixels, name, monkeypatch):
    expected, _ = done(pixels, **HALF[name])
    monkeypatch.setattr(apply, "working_dtype", lambda finish, device: torch.float16)
    off = (done(pixels, **HALF[name])[0] - expected).abs() * 255
    assert off.max() < 0.5
    assert off.square().mean().sqrt() < 0.08


def test_a_card_works_in_half_precision_unless_more_is_asked_for():
    card, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert apply.working_dtype(GpuTransform("bfloat16"), card) == torch.float16
    assert apply.working_dtype(GpuTransform("float16"), card) == torch.float16
    assert apply.working_dtype(GpuTransform("float32"), card) == torch.float32
    assert apply.working_dtype(GpuTransform("bfloat16"), cpu) == torch.float32


def test_in_half_precision_a_window_that_is_not_resized_has_the_very_pixels(pixels, monkeypatch):
    monkeypatch.setattr(apply, "working_dtype", lambda finish, device: torch.float16)
    test_a_window_that_is_not_resized_has_the_very_pixels(pixels)


def test_a_sample_is_finished_alike_in_whatever_batch_it_is(pixels):
    settings = {"size": 24, "crop": (0.2, 1.0), "flip": 0.5, "jitter": (0.2, 0.2, 0.2, 0.1), "epoch": 3}
    whole, _ = done(pixels, **settings)
    alone, _ = done(pixels[5:6], samples=[5], **settings)
    assert torch.allclose(alone[0], whole[5], atol=1e-5)
    other, _ = done(pixels, **{**settings, "epoch": 4})
    assert not torch.allclose(other, whole, atol=1e-2)


def test_many_pictures_are_done_in_portions(pixels, monkeypatch):
    settings = {"size": 24, "crop": (0.2, 1.0), "flip": 0.5, "jitter": (0.2, 0.2, 0.2, 0.1)}
    whole, _ = done(pixels, **settings)
    monkeypatch.setattr(apply, "PORTION_BYTES", 3 * 12 * 60 * 80)
    assert torch.allclose(done(pixels, **settings)[0], whole, atol=1e-5)


def test_a_training_s_autocast_and_gradients_are_left_outside(pixels):
    settings = {"size": 24, "jitter": (0.2, 0.2, 0.2, 0.1)}
    with torch.autocast("cpu", torch.bfloat16):
        inside, _ = done(pixels, **settings)
    assert torch.allclose(inside, done(pixels, **settings)[0], atol=1e-4)
    assert not inside.requires_grad


def test_what_chance_has_in_store_is_sent_as_one_and_what_never_changes_but_once(pixels, monkeypatch):
    sendings, send = [], apply.sent

    def counted(numbers, device):
        sendings.append(numbers.shape)
        return send(numbers, device)

    monkeypatch.setattr(apply, "sent", counted)
    finish = GpuTransform(size=24, crop=(0.2, 1.0), flip=0.5, jitter=(0.2, 0.2, 0.2, 0.1), mean=MEAN, std=STD)
    finisher = TorchTransform(finish, pixels.device)
    for epoch in range(2):
        finisher(pixels, draw_transforms(finish, (60, 80), 1, epoch, np.arange(len(pixels))))
    assert sendings == [(2, 3), (8, 5 + 5 + 12), (8, 22)]


def test_a_picture_that_is_only_normalised_needs_nothing_sent(pixels, monkeypatch):
    finish = GpuTransform(mean=MEAN, std=STD)
    finisher = TorchTransform(finish, pixels.device)
    monkeypatch.setattr(apply, "sent", lambda numbers, device: pytest.fail(f"sent {numbers.shape}"))
    found = finisher(pixels, draw_transforms(finish, (60, 80), 1, 0, np.arange(len(pixels))))
    assert torch.allclose(found, normalised(pixels), atol=1e-5)


@pytest.mark.parametrize(("gib", "mib"), [(8, 64), (80, 320)])
def test_portions_grow_with_the_card(monkeypatch, gib, mib):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib << 30))
    assert apply._portion_bytes(torch.device("cuda", 0)) == mib << 20
