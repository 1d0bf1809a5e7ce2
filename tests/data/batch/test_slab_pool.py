"""Arrays and tensors over a slab, and how long they keep it."""

import gc
import mmap

import numpy as np
import pytest
import torch

from penstock.data.batch.decoded_batch import DecodedBatch
from penstock.data.batch.slab_pool import copy_arrays, lease_arrays
from penstock.data.device.transfer import HostTransfer


class LeasedSlab:
    """A mapping with two leased arrays; counts how often it was given back."""

    def __init__(self):
        self.map = mmap.mmap(-1, 8192)
        self.view = memoryview(self.map)
        self.given_back = 0
        arrays = {
            "image": np.ndarray((4, 3), np.uint8, self.view, 0),
            "label": np.ndarray((4,), np.int64, self.view, 4096),
        }
        arrays["image"][:] = np.arange(12).reshape(4, 3)
        arrays["label"][:] = range(4)
        self.arrays = lease_arrays(arrays, self.view, self._count)

    def _count(self):
        self.given_back += 1

    def take_arrays(self):
        taken, self.arrays = self.arrays, None
        return taken


@pytest.fixture
def slab():
    return LeasedSlab()


def test_leased_arrays_are_the_same_memory(slab):
    arrays = slab.take_arrays()
    slab.view[5] = 99
    assert arrays["image"][1, 2] == 99
    assert type(arrays["image"]) is np.ndarray
    assert arrays["image"].flags.writeable


def test_a_slab_is_given_back_once_when_its_last_array_is_garbage(slab):
    arrays = slab.take_arrays()
    del arrays["image"]
    gc.collect()
    assert slab.given_back == 0
    arrays.clear()
    gc.collect()
    assert slab.given_back == 1


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
def test_every_kind_of_view_keeps_the_slab(slab, make):
    kept = make(slab.take_arrays()["image"])
    gc.collect()
    assert slab.given_back == 0
    del kept
    gc.collect()
    assert slab.given_back == 1


def test_a_mapping_cannot_be_closed_while_an_array_is_leased(slab):
    arrays = slab.take_arrays()
    slab.view.release()
    with pytest.raises(BufferError):
        slab.map.close()
    assert arrays["label"].tolist() == [0, 1, 2, 3]
    arrays.clear()
    gc.collect()
    slab.map.close()
    assert slab.map.closed


def test_copies_do_not_keep_the_slab(slab):
    copies = copy_arrays(slab.take_arrays())
    gc.collect()
    slab.view[0] = 55
    assert slab.given_back == 1
    assert copies["image"][0, 0] == 0


def delivered(arrays, device):
    return HostTransfer(device).receive(DecodedBatch(arrays, 0, np.arange(4), 0, np.arange(4))).tensors


def test_tensors_on_the_cpu_share_the_memory(slab):
    tensors = delivered(slab.take_arrays(), "cpu")
    slab.view[0] = 77
    assert int(tensors["image"][0, 0]) == 77
    assert tensors["label"].dtype == torch.int64


def test_tensors_on_another_device_do_not_keep_the_slab(slab):
    tensors = delivered(slab.take_arrays(), "meta")
    gc.collect()
    assert tensors["image"].shape == (4, 3)
    assert slab.given_back == 1
