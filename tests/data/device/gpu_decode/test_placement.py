"""Placing images of any shapes into any slots: each gets the pixels that it would get alone, in few kernel launches."""

import logging

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.data.device.gpu_decode import placement
from penstock.data.device.gpu_decode.placement import KernelPlacement, SlottedImage, choose_placement, place_by_shape
from penstock.data.fields import Image
from penstock.testing import make_image

SHAPES = [(90, 120), (120, 90), (48, 64), (30, 200), (20, 20)]
VIEWS = {f"aten.{name}" for name in ("slice.Tensor", "select.int", "permute.default", "view.default", "alias.default")}
UNTOUCHED = 77


def images(count, shapes=SHAPES):
    made = (make_image(*shapes[number % len(shapes)], number) for number in range(count))
    return [torch.from_numpy(np.ascontiguousarray(each.transpose(2, 0, 1))) for each in made]


def slotted(image, by_slot):
    """Return images with their slots as they are to be placed."""
    return [SlottedImage(slot, image.geometry(*pixels.shape[1:]), pixels) for slot, pixels in by_slot]


def place_alone(image, pixels):
    """Place one image in a slot of its own, step by step."""
    fit = image.geometry(*pixels.shape[1:])
    resized = pixels[None].float()
    if pixels.shape[1:] != (fit.height, fit.width):
        size = (fit.height, fit.width)
        resized = torch.nn.functional.interpolate(resized, size, mode="bilinear", antialias=True)
    rows, columns = fit.covered
    out = torch.zeros((3, *image.sides), dtype=torch.uint8)
    out[:, :rows, :columns] = resized.round()[
        0, :, fit.cut_top : fit.cut_top + rows, fit.cut_left : fit.cut_left + columns
    ]
    return out


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
@pytest.mark.parametrize("max_pixels", [1 << 25, 20_000, 1])
def test_each_image_gets_the_pixels_that_it_would_get_alone(fit, layout, max_pixels, monkeypatch):
    monkeypatch.setattr(placement, "RESIZED_PIXELS", max_pixels)
    image = Image(".jpg", size=(48, 64), fit=fit, layout=layout, quality="exact")
    by_slot = dict(zip([7, 0, 3, 1, 9, 8, 5], images(7), strict=True))
    out = torch.full((10, 3, 48, 64) if layout == "CHW" else (10, 48, 64, 3), UNTOUCHED, dtype=torch.uint8)
    place_by_shape(image, slotted(image, by_slot.items()), out)
    planes = out if layout == "CHW" else out.permute(0, 3, 1, 2)
    for slot in range(10):
        expected = place_alone(image, by_slot[slot]) if slot in by_slot else torch.full((3, 48, 64), UNTOUCHED)
        assert torch.equal(planes[slot], expected.to(torch.uint8))


def test_without_a_gpu_images_are_placed_by_shape():
    assert choose_placement(Image(".jpg", size=8), torch.device("cpu")).func is place_by_shape


def test_where_the_kernel_fails_images_are_placed_by_shape_and_the_reason_is_logged(monkeypatch, caplog):
    def fail(self, images, out):
        raise RuntimeError("no C compiler")

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda shape, *, dtype, device: zeros(shape, dtype=dtype))
    caplog.set_level(logging.INFO, "penstock")
    monkeypatch.setattr(KernelPlacement, "__call__", lambda self, images, out: None)
    assert isinstance(choose_placement(Image(".jpg", size=8), torch.device("cuda")), KernelPlacement)
    assert "shape by shape" not in caplog.text
    monkeypatch.setattr(KernelPlacement, "__call__", fail)
    assert choose_placement(Image(".jpg", size=8), torch.device("cuda")).func is place_by_shape
    assert "images are placed shape by shape, because" in caplog.text
    assert "no C compiler" in caplog.text


class Operations(TorchDispatchMode):
    """Records the operations that a GPU would run as kernels."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if str(function) not in VIEWS:
            self.made.append(str(function))
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("slots", [range(32), [*range(0, 64, 2)]], ids=["neighbours", "scattered"])
def test_many_images_of_one_shape_take_few_operations(slots):
    image = Image(".jpg", size=(48, 64), quality="exact")
    pixels, out = images(32, [(90, 120)]), torch.empty((64, 3, 48, 64), dtype=torch.uint8)
    with Operations() as operations:
        place_by_shape(image, slotted(image, zip(slots, pixels, strict=True)), out)
    assert len(operations.made) <= 12, operations.made


def test_each_further_shape_takes_a_few_more_operations():
    image = Image(".jpg", size=(48, 64), quality="exact")
    pixels, out = images(32), torch.empty((32, 3, 48, 64), dtype=torch.uint8)
    with Operations() as operations:
        place_by_shape(image, slotted(image, enumerate(pixels)), out)
    assert len(operations.made) <= 8 + 4 * len(SHAPES), operations.made


def test_without_images_the_batch_is_not_touched():
    out = torch.full((1, 3, 48, 64), UNTOUCHED, dtype=torch.uint8)
    with Operations() as operations:
        place_by_shape(Image(".jpg", size=(48, 64), quality="exact"), [], out)
    assert operations.made == []
    assert (out == UNTOUCHED).all()
