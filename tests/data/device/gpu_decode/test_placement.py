"""Pictures of any shapes into any slots: the pixels that each would get alone, in few calls."""

import logging

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.data.device.gpu_decode import placement as placing
from penstock.data.device.gpu_decode.placement import KernelPlacement, choose_placement, place_by_shape
from penstock.data.fields import Image
from penstock.testing import make_image

SHAPES = [(90, 120), (120, 90), (48, 64), (30, 200), (20, 20)]
VIEWS = {f"aten.{name}" for name in ("slice.Tensor", "select.int", "permute.default", "view.default", "alias.default")}


def pictures(count, shapes=SHAPES):
    made = (make_image(*shapes[number % len(shapes)], number) for number in range(count))
    return [torch.from_numpy(np.ascontiguousarray(each.transpose(2, 0, 1))) for each in made]


def alone(image, pixels):
    """One picture in a slot of its own, step by step."""
    at = image.geometry(*pixels.shape[1:])
    numbers = pixels[None].float()
    if pixels.shape[1:] != (at.height, at.width):
        size = (at.height, at.width)
        numbers = torch.nn.functional.interpolate(numbers, size, mode="bilinear", antialias=True)
    rows, columns = at.covered
    out = torch.zeros((3, *image.sides), dtype=torch.uint8)
    out[:, :rows, :columns] = numbers.round()[0, :, at.top : at.top + rows, at.left : at.left + columns]
    return out


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("fit", ["pad", "crop", "stretch"])
@pytest.mark.parametrize("most", [1 << 25, 20_000, 1])
def test_each_gets_the_pixels_that_it_would_get_alone(fit, layout, most, monkeypatch):
    monkeypatch.setattr(placing, "RESIZED_PIXELS", most)
    image = Image(".jpg", size=(48, 64), fit=fit, layout=layout, quality="exact")
    given = dict(zip([7, 0, 3, 1, 9, 8, 5], pictures(7), strict=True))
    out = torch.full((10, 3, 48, 64) if layout == "CHW" else (10, 48, 64, 3), 77, dtype=torch.uint8)
    place_by_shape(image, [*given.items()], out)
    planes = out if layout == "CHW" else out.permute(0, 3, 1, 2)
    for slot in range(10):
        expected = alone(image, given[slot]) if slot in given else torch.full((3, 48, 64), 77)
        assert torch.equal(planes[slot], expected.to(torch.uint8))


def test_without_a_card_it_goes_shape_by_shape():
    assert choose_placement(Image(".jpg", size=8), torch.device("cpu")).func is place_by_shape


def test_where_a_launch_fails_it_goes_shape_by_shape_and_says_why(monkeypatch, caplog):
    def fail(self, pictures, out):
        raise RuntimeError("no C compiler")

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda shape, *, dtype, device: zeros(shape, dtype=dtype))
    caplog.set_level(logging.INFO, "penstock")
    monkeypatch.setattr(KernelPlacement, "__call__", lambda self, pictures, out: None)
    assert isinstance(choose_placement(Image(".jpg", size=8), torch.device("cuda")), KernelPlacement)
    monkeypatch.setattr(KernelPlacement, "__call__", fail)
    assert choose_placement(Image(".jpg", size=8), torch.device("cuda")).func is place_by_shape
    assert "no C compiler" in caplog.text


class Calls(TorchDispatchMode):
    """Counts what a card would have to be told."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if str(function) not in VIEWS:
            self.made.append(str(function))
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("slots", [range(32), [*range(0, 64, 2)]], ids=["neighbours", "scattered"])
def test_many_of_one_shape_take_no_more_calls_than_a_few(slots):
    image = Image(".jpg", size=(48, 64), quality="exact")
    given, out = pictures(32, [(90, 120)]), torch.empty((64, 3, 48, 64), dtype=torch.uint8)
    with Calls() as calls:
        place_by_shape(image, [*zip(slots, given, strict=True)], out)
    assert len(calls.made) <= 12, calls.made


def test_each_shape_adds_a_few_more():
    image = Image(".jpg", size=(48, 64), quality="exact")
    given, out = pictures(32), torch.empty((32, 3, 48, 64), dtype=torch.uint8)
    with Calls() as calls:
        place_by_shape(image, [*enumerate(given)], out)
    assert len(calls.made) <= 8 + 4 * len(SHAPES), calls.made


def test_nothing_to_place_is_nothing():
    place_by_shape(Image(".jpg", size=(48, 64), quality="exact"), [], torch.empty((1, 3, 48, 64), dtype=torch.uint8))
