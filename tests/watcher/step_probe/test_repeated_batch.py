from collections import UserDict, namedtuple

import numpy as np
import torch

from penstock.watcher.step_probe.repeated_batch import RepeatedBatch

Pair = namedtuple("Pair", "picture label")


def test_a_batch_that_was_taken_apart_is_whole_again():
    again = RepeatedBatch({"picture": torch.ones(2), "label": [torch.zeros(1), "cat"]})
    first = again.batch()
    first.pop("label").clear()
    second = again.batch()
    assert second["label"][1] == "cat"
    assert torch.equal(second["label"][0], torch.zeros(1))


def test_numbers_that_were_changed_in_place_are_put_back_where_they_lie():
    picture = torch.full((4,), 255.0)
    again = RepeatedBatch((picture, np.arange(3)))
    for _ in range(3):
        tensor, array = again.batch()
        assert tensor.tolist() == [255.0] * 4
        assert tensor.data_ptr() == picture.data_ptr()
        assert array.tolist() == [0, 1, 2]
        tensor.div_(255)
        tensor[:2].zero_()
        array[:] = 7


def test_a_tensor_that_nobody_changed_is_not_copied(monkeypatch):
    again = RepeatedBatch([torch.ones(3)])
    monkeypatch.setattr(torch.Tensor, "copy_", None)
    assert again.batch()[0].tolist() == again.batch()[0].tolist() == [1.0] * 3


def test_gradients_of_one_step_are_not_the_next_ones():
    again = RepeatedBatch(torch.ones(3))
    batch = again.batch().requires_grad_()
    batch.sum().backward()
    assert not again.batch().requires_grad
    assert again.batch().grad is None


def test_kinds_are_kept():
    class Other:
        pass

    other = Other()
    batch = RepeatedBatch(Pair(UserDict(picture=torch.ones(1)), (torch.zeros(2), other, 3))).batch()
    assert type(batch) is Pair
    assert type(batch.picture) is UserDict
    assert type(batch.label) is tuple
    assert batch.label[1] is other
    assert torch.equal(batch.picture["picture"], torch.ones(1))
