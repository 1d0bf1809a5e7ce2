"""The cost of batches, measured on one real worker."""

import multiprocessing
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from penstock.errors import SettingError
from penstock.tuner.worker_cost import FetchFailed, WorkerStartFailed, batch_size_bytes, measure_worker_cost

LATENCY_S = 0.02
FOREVER = float("inf")


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        time.sleep(LATENCY_S)
        return torch.full((1000,), at)


class Bad(Slow):
    def __getitem__(self, at):
        if at == 5:
            raise ValueError("no such image")
        return at


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def one_worker(dataset, **settings):
    return DataLoader(dataset, num_workers=1, **settings)


@pytest.fixture(autouse=True)
def _no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


def test_waiting_and_computing_are_measured_separately():
    found = measure_worker_cost(one_worker(Slow(), batch_size=2), seconds=0.1, until_s=FOREVER)
    assert len(found.cpu_s) == len(found.waiting_s) >= 3
    assert np.median(found.waiting_s) > LATENCY_S  # two samples, less the error of the clocks
    assert np.median(found.cpu_s) < np.median(found.waiting_s)
    assert found.batch_bytes == 2 * 1000 * 8
    assert found.worker_bytes is None or found.worker_bytes > 1 << 20
    assert found.receive_s >= 0
    assert found.last.shape == (2, 1000)


def test_dataset_that_ends_early_is_measured():
    found = measure_worker_cost(one_worker(Stream(3), batch_size=None), seconds=5.0, until_s=FOREVER)
    assert len(found.cpu_s) >= 1


def test_measurement_ends_when_the_time_is_over():
    found = measure_worker_cost(one_worker(Slow(), batch_size=1), seconds=60.0, until_s=0.0)
    assert len(found.cpu_s) >= 1


def test_empty_dataset_is_refused():
    with pytest.raises(SettingError, match="is empty"):
        measure_worker_cost(one_worker(Stream(0)), seconds=1.0, until_s=FOREVER)


def test_failing_batch_is_numbered():
    with pytest.raises(FetchFailed) as failed:
        measure_worker_cost(one_worker(Bad(), batch_size=2), seconds=1.0, until_s=FOREVER)
    assert failed.value.batch == 2
    assert isinstance(failed.value.__cause__, ValueError)


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_dataset_that_cannot_be_pickled_is_a_failed_start():
    data = TensorDataset(torch.arange(8))
    data.transform = lambda x: x
    with pytest.raises(WorkerStartFailed) as failed:
        measure_worker_cost(one_worker(data, multiprocessing_context="spawn"), seconds=1.0, until_s=FOREVER)
    assert failed.value.__cause__ is not None


def test_size_of_a_batch_is_that_of_its_arrays():
    batch = {"image": torch.zeros(2, 3), "more": [np.zeros(4, np.uint8), ("ab", b"c")], "label": 3}
    assert batch_size_bytes(batch) == 2 * 3 * 4 + 4 + 2 + 1
