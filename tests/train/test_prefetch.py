"""Moving batches of any structure to a device, and one batch ahead of the loop.

torch's "meta" device stands in for a device that is not the CPU.
"""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.errors import SettingError
from penstock.train import Prefetcher, to_device

Pair = namedtuple("Pair", "image label")


@dataclass
class Boxed:
    image: torch.Tensor
    name: str


def meta(value):
    return to_device(value, "meta")


def test_nested_tensors_are_moved_and_other_leaves_are_kept():
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
def test_a_structure_keeps_its_type(batch):
    moved = meta(batch)
    assert type(moved) is type(batch)
    first = moved["image"] if hasattr(batch, "keys") else moved.image if hasattr(batch, "image") else moved[0]
    assert first.device.type == "meta"


def test_objects_with_a_method_to_are_moved_by_it():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    assert type(to_device(packed, "cpu")) is type(packed)
    assert meta(packed).data.device.type == "meta"


def test_the_original_batch_is_not_changed():
    batch = OrderedDict(image=torch.zeros(1), more=[torch.ones(1)])
    meta(batch)
    assert batch["image"].device.type == batch["more"][0].device.type == "cpu"


def test_tensors_on_the_device_already_are_not_copied():
    image = torch.zeros(4)
    assert to_device([image], "cpu", pin=True)[0] is image


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_copies_arrive_on_a_gpu():
    batch = {"x": torch.arange(1000.0)}
    for pin in (False, True):
        assert torch.equal(to_device(batch, "cuda", pin=pin)["x"].cpu(), batch["x"])


# -- prefetching -------------------------------------------------------------------------------------------------------


def batches(count=7):
    return [{"x": torch.full((3,), float(number))} for number in range(count)]


def firsts(loader):
    return [batch["x"][0].item() for batch in loader]


def test_every_batch_is_delivered_once_in_order():
    prefetcher = Prefetcher(batches(), "cpu")
    assert firsts(prefetcher) == firsts(prefetcher) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert len(prefetcher) == 7


def test_the_next_batch_is_read_before_the_current_one_is_delivered():
    taken = []

    def loader():
        for number in range(3):
            taken.append(number)
            yield number

    seen = [(number, list(taken)) for number in Prefetcher(loader(), "cpu")]
    assert seen == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2])]


def test_an_empty_loader_has_no_batch():
    assert list(Prefetcher([], "cpu")) == []


def test_an_error_of_the_loader_is_raised():
    def loader():
        yield 1
        yield 2
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        list(Prefetcher(loader(), "cpu"))


def test_attributes_of_the_loader_are_passed_through():
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    assert Prefetcher(loader, "cpu").dataset is loader.dataset
    with pytest.raises(AttributeError):
        _ = Prefetcher(loader, "cpu").no_such_thing


def test_the_state_is_that_of_the_batch_that_the_loop_has():
    def loader():
        return penstock.Loader(
            TensorDataset(torch.arange(20)),
            batch_size=4,
            engine=penstock.EngineOptions(executor="thread"),
            num_workers=1,
        )

    first, second = loader(), loader()
    prefetcher = Prefetcher(first, "cpu")
    for number, _ in enumerate(prefetcher):
        if number == 1:
            state = prefetcher.state_dict()
            break
    other = Prefetcher(second, "cpu")
    other.load_state_dict(state)
    assert [batch.tolist() for (batch,) in other] == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
    assert other.state_dict()["epoch"] == 1
    first.close()
    second.close()


def test_the_state_of_a_loader_without_one_is_an_error():
    with pytest.raises(SettingError, match="list has no state_dict"):
        Prefetcher([], "cpu").state_dict()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [False, True])
def test_batches_on_a_gpu_are_complete_when_the_loop_uses_them(pin):
    large = [{"x": torch.full((1 << 22,), float(number))} for number in range(20)]
    sums = [batch["x"].sum() for batch in Prefetcher(large, "cuda", pin=pin)]
    assert [each.item() for each in sums] == [float(number << 22) for number in range(20)]
