from collections import UserDict, namedtuple

import numpy as np
import torch

from penstock.watcher.step_probe.repeated_batch import RepeatedBatch

ImageAndLabel = namedtuple("ImageAndLabel", "image label")


def test_a_batch_whose_containers_were_emptied_is_delivered_complete_again():
    repeated = RepeatedBatch({"image": torch.ones(2), "label": [torch.zeros(1), "cat"]})
    first = repeated.batch()
    first.pop("label").clear()
    second = repeated.batch()
    assert second["label"][1] == "cat"
    assert torch.equal(second["label"][0], torch.zeros(1))


def test_values_changed_in_place_are_restored_in_the_same_memory():
    image = torch.full((4,), 255.0)
    repeated = RepeatedBatch((image, np.arange(3)))
    for _ in range(3):
        tensor, array = repeated.batch()
        assert tensor.tolist() == [255.0] * 4
        assert tensor.data_ptr() == image.data_ptr()
        assert array.tolist() == [0, 1, 2]
        tensor.div_(255)
        tensor[:2].zero_()
        array[:] = 7


def test_an_unchanged_tensor_is_not_copied(monkeypatch):
    repeated = RepeatedBatch([torch.ones(3)])
    monkeypatch.setattr(torch.Tensor, "copy_", None)
    assert repeated.batch()[0].tolist() == repeated.batch()[0].tolist() == [1.0] * 3


def test_gradients_of_one_step_do_not_carry_over_to_the_next():
    repeated = RepeatedBatch(torch.ones(3))
    batch = repeated.batch().requires_grad_()
    batch.sum().backward()
    assert not repeated.batch().requires_grad
    assert repeated.batch().grad is None


def test_container_types_and_other_objects_are_kept():
    class Other:
        pass

    other = Other()
    batch = RepeatedBatch(ImageAndLabel(UserDict(image=torch.ones(1)), (torch.zeros(2), other, 3))).batch()
    assert type(batch) is ImageAndLabel
    assert type(batch.image) is UserDict
    assert type(batch.label) is tuple
    assert batch.label[1] is other
    assert torch.equal(batch.image["image"], torch.ones(1))
