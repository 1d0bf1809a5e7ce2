import multiprocessing
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from penstock.errors import SettingError
from penstock.tuner.worker_cost import FetchFailed, StartFailed, measure_worker_cost, size_bytes

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
            raise ValueError("no such picture")
        return at


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def one_worker(dataset, **settings):
    return DataLoader(dataset, num_workers=1, **settings)


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    yield
    assert multiprocessing.active_children() == []


def test_waiting_and_computing_are_told_apart():
    found = measure_worker_cost(one_worker(Slow(), batch_size=2), seconds=0.1, until_s=FOREVER)
    assert len(found.cpu_s) == len(found.waiting_s) >= 3
    assert np.median(found.waiting_s) > LATENCY_S  # two samples, less what the clocks are off
    assert np.median(found.cpu_s) < np.median(found.waiting_s)
    assert found.batch_bytes == 2 * 1000 * 8
    assert found.worker_bytes is None or found.worker_bytes > 1 << 20
    assert found.handover_s >= 0
    assert found.last.shape == (2, 1000)


def test_batches_that_end_early_are_enough():
    found = measure_worker_cost(one_worker(Stream(3), batch_size=None), seconds=5.0, until_s=FOREVER)
    assert len(found.cpu_s) >= 1


def test_time_that_is_out_ends_it():
    found = measure_worker_cost(one_worker(Slow(), batch_size=1), seconds=60.0, until_s=0.0)
    assert len(found.cpu_s) >= 1


def test_nothing_at_all_is_an_empty_dataset():
    with pytest.raises(SettingError, match="is empty"):
        measure_worker_cost(one_worker(Stream(0)), seconds=1.0, until_s=FOREVER)


def test_the_batch_that_fails_is_counted():
    with pytest.raises(FetchFailed) as failed:
        measure_worker_cost(one_worker(Bad(), batch_size=2), seconds=1.0, until_s=FOREVER)
    assert failed.value.batch == 2
    assert isinstance(failed.value.__cause__, ValueError)


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_what_cannot_be_sent_to_a_worker_is_a_failed_start():
    data = TensorDataset(torch.arange(8))
    data.transform = lambda x: x
    with pytest.raises(StartFailed) as failed:
        measure_worker_cost(one_worker(data, multiprocessing_context="spawn"), seconds=1.0, until_s=FOREVER)
    assert failed.value.__cause__ is not None


def test_the_size_of_a_batch_is_that_of_its_arrays():
    batch = {"image": torch.zeros(2, 3), "more": [np.zeros(4, np.uint8), ("ab", b"c")], "label": 3}
    assert size_bytes(batch) == 2 * 3 * 4 + 4 + 2 + 1
