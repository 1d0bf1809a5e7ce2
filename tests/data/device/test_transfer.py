"""Arrays and tensors over a slab: how long the slab is kept for them."""

import gc
import mmap

import numpy as np
import pytest
import torch

from penstock.data.batch.decoded_batch import DecodedBatch
from penstock.data.batch.slab_pool import copy_arrays, lease_arrays
from penstock.data.device.transfer import HostTransfer


def delivered(arrays, device):
    return HostTransfer(device).receive(DecodedBatch(arrays, 0, np.arange(4), 0, np.arange(4))).tensors


class Loan:
    """A mapping with two arrays, lent out; counts how often it came back."""

    def __init__(self):
        self.map = mmap.mmap(-1, 8192)
        self.view = memoryview(self.map)
        self.back = 0
        arrays = {
            "image": np.ndarray((4, 3), np.uint8, self.view, 0),
            "label": np.ndarray((4,), np.int64, self.view, 4096),
        }
        arrays["image"][:] = np.arange(12).reshape(4, 3)
        arrays["label"][:] = range(4)
        self.arrays = lease_arrays(arrays, self.view, self._count)

    def _count(self):
        self.back += 1

    def take(self):
        taken, self.arrays = self.arrays, None
        return taken


@pytest.fixture
def loan():
    return Loan()


def test_leased_arrays_are_the_same_memory(loan):
    arrays = loan.take()
    loan.view[5] = 99
    assert arrays["image"][1, 2] == 99
    assert type(arrays["image"]) is np.ndarray
    assert arrays["image"].flags.writeable


def test_a_slab_comes_back_once_when_the_last_array_is_gone(loan):
    arrays = loan.take()
    del arrays["image"]
    gc.collect()
    assert loan.back == 0
    arrays.clear()
    gc.collect()
    assert loan.back == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda array: array[1:],
        lambda array: array.reshape(-1)[::2],
        lambda array: array.view(np.ndarray)[:2],
        np.asarray,
        lambda array: np.asarray(array[1:])[1:],
        lambda array: array.T.view(np.int8),
        memoryview,
        torch.from_numpy,
        lambda array: torch.from_numpy(array)[2:].t(),
        lambda array: torch.from_numpy(array).numpy()[1:],
    ],
    ids=["slice", "strided", "view", "asarray", "slice of slice", "other dtype", "buffer", "tensor", "view", "back"],
)
def test_whatever_still_looks_at_a_slab_keeps_it(loan, make):
    kept = make(loan.take()["image"])
    gc.collect()
    assert loan.back == 0
    del kept
    gc.collect()
    assert loan.back == 1


def test_a_mapping_cannot_be_closed_under_a_lent_array(loan):
    arrays = loan.take()
    loan.view.release()
    with pytest.raises(BufferError):
        loan.map.close()
    assert arrays["label"].tolist() == [0, 1, 2, 3]
    arrays.clear()
    gc.collect()
    loan.map.close()
    assert loan.map.closed


def test_tensors_on_the_cpu_share_the_memory(loan):
    tensors = delivered(loan.take(), "cpu")
    loan.view[0] = 77
    assert int(tensors["image"][0, 0]) == 77
    assert tensors["label"].dtype == torch.int64


def test_tensors_elsewhere_do_not_keep_the_slab(loan):
    tensors = delivered(loan.take(), "meta")
    gc.collect()
    assert tensors["image"].shape == (4, 3)
    assert loan.back == 1


def test_a_copy_is_memory_of_its_own(loan):
    copied = copy_arrays(loan.take())
    gc.collect()
    loan.view[0] = 55
    assert loan.back == 1
    assert copied["image"][0, 0] == 0
