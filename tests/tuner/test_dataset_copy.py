import numpy as np
import torch

from penstock.tuner import loader_copy as copying
from penstock.tuner.loader_copy import copy_dataset


class Data:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def test_a_copy_shares_what_is_large_and_what_is_code():
    data = Data(array=np.zeros(5), tensor=torch.zeros(5), function=lambda: 1, names=["a", "b"])
    copy = copy_dataset(data)
    assert copy is not data
    assert copy.array is data.array
    assert copy.tensor is data.tensor
    assert copy.function is data.function
    assert copy.names == data.names
    assert copy.names is not data.names


def test_a_dataset_of_a_class_inside_a_function_can_be_copied():
    class Local(Data):
        def __getitem__(self, at):
            self.opened = True
            return at

    data = Local(opened=False)
    assert copy_dataset(data)[3] == 3
    assert data.opened is False


def test_what_a_dataset_leaves_out_of_its_pickles_the_copy_does_not_have(tmp_path):
    class Careful(Data):
        def __getstate__(self):
            return {**self.__dict__, "file": None}

    with open(tmp_path / "file", "w") as file:
        assert copy_dataset(Careful(file=file)).file is None


def test_a_dataset_with_an_open_file_cannot_be_copied(tmp_path):
    with open(tmp_path / "file", "w") as file:
        assert copy_dataset(Data(file=file)) is None


def test_a_dataset_that_is_too_large_is_not_copied(monkeypatch):
    monkeypatch.setattr(copying, "COPY_BYTES_MAX", 1000)
    assert copy_dataset(Data(names=[str(at) * 10 for at in range(100)])) is None
    assert copy_dataset(Data(array=np.zeros(1000))) is not None
