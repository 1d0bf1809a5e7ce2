"""Batches of any structure to a device. torch's "meta" device stands in for one that is not the CPU."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from penstock.train import to_device

Pair = namedtuple("Pair", "image label")


@dataclass
class Boxed:
    image: torch.Tensor
    name: str


def meta(value):
    return to_device(value, "meta")


def test_tensors_are_moved_wherever_they_are_and_all_else_stays():
    moved = meta({"image": torch.zeros(2), "deep": [(torch.ones(1), "key"), None, 3]})
    assert moved["image"].device.type == moved["deep"][0][0].device.type == "meta"
    assert moved["deep"][0][1:] == ("key",)
    assert moved["deep"][1:] == [None, 3]


@pytest.mark.parametrize(
    "batch",
    [
        Pair(torch.zeros(1), "a"),
        Boxed(torch.zeros(1), "a"),
        OrderedDict(image=torch.zeros(1)),
        UserDict(image=torch.zeros(1)),
        [torch.zeros(1)],
        (torch.zeros(1),),
    ],
)
def test_a_structure_keeps_its_kind(batch):
    moved = meta(batch)
    assert type(moved) is type(batch)
    first = moved["image"] if hasattr(batch, "keys") else moved.image if hasattr(batch, "image") else moved[0]
    assert first.device.type == "meta"


def test_what_can_move_itself_does():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    assert type(to_device(packed, "cpu")) is type(packed)
    assert meta(packed).data.device.type == "meta"


def test_the_batch_itself_is_not_touched():
    batch = OrderedDict(image=torch.zeros(1), more=[torch.ones(1)])
    meta(batch)
    assert batch["image"].device.type == batch["more"][0].device.type == "cpu"


def test_on_the_same_device_nothing_is_copied():
    image = torch.zeros(4)
    assert to_device([image], "cpu", pin=True)[0] is image


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_copies_arrive_on_a_gpu():
    batch = {"x": torch.arange(1000.0)}
    for pin in (False, True):
        assert torch.equal(to_device(batch, "cuda", pin=pin)["x"].cpu(), batch["x"])
