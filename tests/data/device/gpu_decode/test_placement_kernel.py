"""The kernel that places images of all shapes, run by Triton's interpreter on the CPU and compared with arithmetic.

It is also compared with the placement by torch, and with what the image field does with the same pixels.
"""

import io
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.support.triton_interpreter import count_launches, interpreted

from penstock.data.device.gpu_decode.decode_chunks import split_chunks
from penstock.data.device.gpu_decode.placement import KernelPlacement, SlottedImage, place_by_shape
from penstock.data.fields import Image
from penstock.data.fields.base import SampleContext
from penstock.data.fields.geometry import RANDOM_NUMBERS, RandomResizedCrop

CASES = {
    "pad CHW": {"fit": "pad"},
    "crop HWC": {"fit": "crop", "layout": "HWC"},
    "stretch CHW": {"fit": "stretch", "flip": 0.5},
    "letterbox HWC": {"fit": "letterbox", "fill": (200, 7, 90), "flip": 0.5, "layout": "HWC"},
    "coloured pad CHW": {"fill": 99, "flip": 1.0},
    "random CHW": {"crop": RandomResizedCrop(), "flip": 0.5},
    "centre HWC": {"resize": 30, "crop": "center", "flip": 0.5, "layout": "HWC"},
}
"""Few cases of each kind, because the interpreter is slow."""
SHAPES = ((27, 36), (18, 24), (10, 60), (9, 9), (61, 3))
SLOTS, BATCH_SIZE, SIDES = (7, 0, 3, 1, 9), 10, (18, 24)  # a tile and a part of one
UNTOUCHED = 77
SPLIT_CASES = "pad CHW", "random CHW"
FEW_PIXELS = 2_000
"""A limit that splits the images into several launches."""


def images():
    """Return noise, in which an error of one pixel shows."""
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.integers(0, 256, (3, *shape), np.uint8)) for shape in SHAPES]


def image_field(case):
    return Image(".png", size=SIDES, quality="exact", **CASES[case])


def draws(number):
    return np.random.default_rng(number).random(RANDOM_NUMBERS).tolist()


def slotted(field, pixels):
    """Return the images with the slots and geometries with which they are to be placed."""
    return [
        SlottedImage(slot, field.geometry(*each.shape[1:], draws(slot)), each)
        for slot, each in zip(SLOTS, pixels, strict=True)
    ]


def place(case, pixels, placement=KernelPlacement):
    """Return a batch of which some slots are filled."""
    field = image_field(case)
    out = torch.full((BATCH_SIZE, *field.shape), UNTOUCHED, dtype=torch.uint8)
    place_all = placement(field)
    place_all(slotted(field, pixels), out)
    place_all([], out)
    return out.numpy()


def interpret(path):
    from penstock.data.device.gpu_decode import placement
    from penstock.data.device.gpu_decode import placement_kernel as kernel

    launches = count_launches(kernel, "place_kernel")
    pixels = images()
    found = {case: place(case, pixels) for case in CASES}
    found["launches"] = np.array(len(launches))
    placement.RESIZED_PIXELS = FEW_PIXELS
    views = [torch.nn.functional.pad(image, (3, 2, 1, 4))[:, 1:-4, 3:-2] for image in pixels]
    for case in SPLIT_CASES:
        found[f"split {case}"] = place(case, views)
    found["split launches"] = np.array(len(launches)) - found["launches"]
    np.savez(path, **found)


if __name__ == "__main__":
    interpret(sys.argv[1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return interpreted(__file__, tmp_path_factory)


def weights(in_size, out_size):
    """Return (out_size, in_size): the weight of each input row in each output row."""
    scale = in_size / out_size
    centres = (np.arange(out_size)[:, None] + 0.5) * scale
    weights = np.maximum(1 - np.abs(np.arange(in_size) + 0.5 - centres) / max(scale, 1), 0)
    return weights / weights.sum(axis=1, keepdims=True)


def planes(case, batch):
    """Return a batch as (slots, 3, height, width)."""
    return batch.transpose(0, 3, 1, 2) if "HWC" in case else batch


@pytest.mark.parametrize("case", CASES)
def test_pixels_are_antialiased_to_half_a_level_and_what_is_not_covered_has_the_fill_colour(found, case):
    field = image_field(case)
    colour = np.array(field.fill if isinstance(field.fill, tuple) else [field.fill] * 3)
    for slot, geometry, pixels in slotted(field, images()):
        top, left, height, width = geometry.window
        window = pixels.numpy().astype(float)[:, top : top + height, left : left + width]
        resized = weights(height, geometry.height) @ window @ weights(width, geometry.width).T
        rows, columns = geometry.covered
        shown = resized[:, geometry.cut_top : geometry.cut_top + rows, geometry.cut_left : geometry.cut_left + columns]
        expected = np.tile(colour[:, None, None], (1, *SIDES)).astype(float)
        place = np.s_[:, geometry.pad_top : geometry.pad_top + rows, geometry.pad_left : geometry.pad_left + columns]
        expected[place] = shown[:, :, ::-1] if geometry.mirrored else shown
        assert np.abs(planes(case, found[case])[slot] - expected).max() < 0.501


@pytest.mark.parametrize("case", CASES)
def test_the_batch_equals_that_of_torch_to_one_level(found, case):
    expected = place(case, images(), lambda field: partial(place_by_shape, field))
    # A result of one column is left out: torch 2.13's interpolate computes it wrongly on a CPU.
    slots = [each.slot for each in slotted(image_field(case), images()) if each.geometry.width > 1]
    assert len(slots) >= 4
    assert np.abs(found[case][slots].astype(int) - expected[slots]).max() <= 1


@pytest.mark.parametrize("case", CASES)
def test_each_image_equals_that_of_the_image_field_on_the_cpu(found, case):
    field = image_field(case)
    for slot, pixels in zip(SLOTS, images(), strict=True):
        png = io.BytesIO()
        Pillow.fromarray(pixels.numpy().transpose(1, 2, 0)).save(png, "PNG")
        expected = field.decode_value(".png", memoryview(png.getvalue()), SampleContext(draws(slot)))
        assert np.abs(found[case][slot].astype(int) - expected).max() <= 1


def test_slots_without_an_image_are_not_touched(found):
    others = [slot for slot in range(BATCH_SIZE) if slot not in SLOTS]
    for case in CASES:
        assert (found[case][others] == UNTOUCHED).all()


def test_all_shapes_take_one_launch(found):
    assert found["launches"] == len(CASES)


def test_many_pixels_take_several_launches_and_views_of_larger_tensors_give_the_same_pixels(found):
    expected = 0
    for case in SPLIT_CASES:
        windows = [each.geometry.window for each in slotted(image_field(case), images())]
        expected += len(split_chunks([window.height * window.width for window in windows], FEW_PIXELS))
        assert (found[f"split {case}"] == found[case]).all()
    assert found["split launches"] == expected > len(SPLIT_CASES)
