"""The kernel that places pictures of all shapes, run by Triton's interpreter on the CPU, beside plain arithmetic."""

import sys

import numpy as np
import pytest
import torch
from tests.support.triton_interpreter import count_launches, interpreted

from penstock.data.device.gpu_decode.placement import KernelPlacement
from penstock.data.fields import Image

CASES = ("pad", "CHW"), ("crop", "HWC"), ("stretch", "CHW")
"""Each layout once, each fit: an interpreter takes its time."""
SHAPES = ((27, 36), (18, 24), (10, 60), (9, 9), (61, 3))
SLOTS, BATCH, SIDES = (7, 0, 3, 1, 9), 10, (18, 24)  # a tile and a part of one
UNTOUCHED = 77


def pictures():
    """Noise: what is a pixel off shows."""
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.integers(0, 256, (3, *shape), np.uint8)) for shape in SHAPES]


def image_of(fit, layout):
    return Image(".jpg", size=SIDES, fit=fit, layout=layout, quality="exact")


def placed(fit, layout, given):
    """A batch of which some slots are filled."""
    shape = (3, *SIDES) if layout == "CHW" else (*SIDES, 3)
    out = torch.full((BATCH, *shape), UNTOUCHED, dtype=torch.uint8)
    at_once = KernelPlacement(image_of(fit, layout))
    at_once([*zip(SLOTS, given, strict=True)], out)
    at_once([], out)
    return out.numpy()


def interpret(path):
    from penstock.data.device.gpu_decode import placement as placing
    from penstock.data.device.gpu_decode import placement_kernel as kernel

    launches = count_launches(kernel, "place_kernel")
    given = pictures()
    found = {f"{fit} {layout}": placed(fit, layout, given) for fit, layout in CASES}
    found["launches"] = np.array(len(launches))
    placing.RESIZED_PIXELS, placing.SHAPES_KEPT = 2_000, 2
    within = [torch.nn.functional.pad(picture, (3, 2, 1, 4))[:, 1:-4, 3:-2] for picture in given]
    found["cut"] = placed("pad", "CHW", within)
    found["launches when cut"] = np.array(len(launches)) - found["launches"]
    np.savez(path, **found)


if __name__ == "__main__":
    interpret(sys.argv[1])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return interpreted(__file__, tmp_path_factory)


def resized(length, wanted):
    """(wanted, length): how much each row counts in each wanted one."""
    scale = length / wanted
    middles = (np.arange(wanted)[:, None] + 0.5) * scale
    weights = np.maximum(1 - np.abs(np.arange(length) + 0.5 - middles) / max(scale, 1), 0)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("fit", "layout"), CASES)
def test_pixels_are_antialiased_to_half_a_level_and_the_rest_is_black(found, fit, layout):
    batch = found[f"{fit} {layout}"] if layout == "CHW" else found[f"{fit} {layout}"].transpose(0, 3, 1, 2)
    for slot, picture in zip(SLOTS, pictures(), strict=True):
        at = image_of(fit, layout).geometry(*picture.shape[1:])
        rows, columns = at.covered
        down, across = resized(picture.shape[1], at.height), resized(picture.shape[2], at.width)
        whole = down @ picture.numpy().astype(float) @ across.T
        expected = np.zeros((3, *SIDES))
        expected[:, :rows, :columns] = whole[:, at.top : at.top + rows, at.left : at.left + columns]
        assert np.abs(batch[slot] - expected).max() < 0.501


def test_slots_without_a_picture_stay_as_they_were(found):
    others = [slot for slot in range(BATCH) if slot not in SLOTS]
    for fit, layout in CASES:
        assert (found[f"{fit} {layout}"][others] == UNTOUCHED).all()


def test_all_shapes_take_one_launch(found):
    assert found["launches"] == len(CASES)


def test_many_pixels_take_several_and_pictures_that_lie_within_something_larger_are_taken_as_they_are(found):
    assert found["launches when cut"] > 1
    assert (found["cut"] == found["pad CHW"]).all()
