"""The kernel that places images of all shapes, run by Triton's interpreter on the CPU and compared with arithmetic."""

import sys

import numpy as np
import pytest
import torch
from tests.support.triton_interpreter import count_launches, interpreted

from penstock.data.device.gpu_decode.decode_chunks import split_chunks
from penstock.data.device.gpu_decode.placement import KernelPlacement
from penstock.data.fields import Image

CASES = ("pad", "CHW"), ("crop", "HWC"), ("stretch", "CHW")
"""Each layout and each fit once, because the interpreter is slow."""
SHAPES = ((27, 36), (18, 24), (10, 60), (9, 9), (61, 3))
SLOTS, BATCH_SIZE, SIDES = (7, 0, 3, 1, 9), 10, (18, 24)  # a tile and a part of one
UNTOUCHED = 77
FEW_PIXELS = 2_000
"""A limit that splits the images into several launches."""


def images():
    """Return noise, in which an error of one pixel shows."""
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.integers(0, 256, (3, *shape), np.uint8)) for shape in SHAPES]


def image_field(fit, layout):
    return Image(".jpg", size=SIDES, fit=fit, layout=layout, quality="exact")


def place(fit, layout, pixels):
    """Return a batch of which some slots are filled."""
    shape = (3, *SIDES) if layout == "CHW" else (*SIDES, 3)
    out = torch.full((BATCH_SIZE, *shape), UNTOUCHED, dtype=torch.uint8)
    placement = KernelPlacement(image_field(fit, layout))
    placement([*zip(SLOTS, pixels, strict=True)], out)
    placement([], out)
    return out.numpy()


def interpret(path):
    from penstock.data.device.gpu_decode import placement
    from penstock.data.device.gpu_decode import placement_kernel as kernel

    launches = count_launches(kernel, "place_kernel")
    pixels = images()
    found = {f"{fit} {layout}": place(fit, layout, pixels) for fit, layout in CASES}
    found["launches"] = np.array(len(launches))
    placement.RESIZED_PIXELS, placement.CACHED_SHAPES = FEW_PIXELS, 2
    views = [torch.nn.functional.pad(image, (3, 2, 1, 4))[:, 1:-4, 3:-2] for image in pixels]
    found["split"] = place("pad", "CHW", views)
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


@pytest.mark.parametrize(("fit", "layout"), CASES)
def test_pixels_are_antialiased_to_half_a_level_and_the_padding_is_black(found, fit, layout):
    batch = found[f"{fit} {layout}"] if layout == "CHW" else found[f"{fit} {layout}"].transpose(0, 3, 1, 2)
    for slot, image in zip(SLOTS, images(), strict=True):
        geometry = image_field(fit, layout).geometry(*image.shape[1:])
        rows, columns = geometry.covered
        row_weights, column_weights = weights(image.shape[1], geometry.height), weights(image.shape[2], geometry.width)
        whole = row_weights @ image.numpy().astype(float) @ column_weights.T
        expected = np.zeros((3, *SIDES))
        window = whole[:, geometry.top : geometry.top + rows, geometry.left : geometry.left + columns]
        expected[:, :rows, :columns] = window
        assert np.abs(batch[slot] - expected).max() < 0.501


def test_slots_without_an_image_are_not_touched(found):
    others = [slot for slot in range(BATCH_SIZE) if slot not in SLOTS]
    for fit, layout in CASES:
        assert (found[f"{fit} {layout}"][others] == UNTOUCHED).all()


def test_all_shapes_take_one_launch(found):
    assert found["launches"] == len(CASES)


def test_many_pixels_take_several_launches_and_views_of_larger_tensors_give_the_same_pixels(found):
    chunks = split_chunks([height * width for height, width in SHAPES], FEW_PIXELS)
    assert found["split launches"] == len(chunks) > 1
    assert (found["split"] == found["pad CHW"]).all()
