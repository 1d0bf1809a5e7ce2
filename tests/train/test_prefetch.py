"""One batch ahead, around any loader."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock.errors import SettingError
from penstock.train import Prefetcher


def batches(count=7):
    return [{"x": torch.full((3,), float(number))} for number in range(count)]


def firsts(loader):
    return [batch["x"][0].item() for batch in loader]


def test_every_batch_comes_once_in_order():
    prefetcher = Prefetcher(batches(), "cpu")
    assert firsts(prefetcher) == firsts(prefetcher) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert len(prefetcher) == 7


def test_the_next_batch_is_taken_before_this_one_is_handed_out():
    taken = []

    def loader():
        for number in range(3):
            taken.append(number)
            yield number

    seen = [(number, list(taken)) for number in Prefetcher(loader(), "cpu")]
    assert seen == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2])]


def test_an_empty_loader_has_no_batch():
    assert list(Prefetcher([], "cpu")) == []


def test_an_error_of_the_loader_comes_through():
    def loader():
        yield 1
        yield 2
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        list(Prefetcher(loader(), "cpu"))


def test_what_the_loader_has_is_found_here_too():
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    assert Prefetcher(loader, "cpu").dataset is loader.dataset
    with pytest.raises(AttributeError):
        _ = Prefetcher(loader, "cpu").no_such_thing


def test_the_state_is_that_of_the_batch_the_loop_has():
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


def test_a_loader_without_a_state_has_none_here_either():
    with pytest.raises(SettingError, match="list has no state_dict"):
        Prefetcher([], "cpu").state_dict()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [False, True])
def test_on_a_gpu_the_values_are_whole_when_the_loop_uses_them(pin):
    large = [{"x": torch.full((1 << 22,), float(number))} for number in range(20)]
    sums = [batch["x"].sum() for batch in Prefetcher(large, "cuda", pin=pin)]
    assert [each.item() for each in sums] == [float(number << 22) for number in range(20)]
