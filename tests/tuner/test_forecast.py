import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from penstock.tuner import search as outlook
from penstock.tuner.measure import StepCost
from penstock.tuner.result import Setting
from penstock.tuner.search import expected, worker_limit, workload_of
from penstock.tuner.trials import SettingTrials
from penstock.tuner.worker_cost import WorkerCost

PATTERN = DataLoader(TensorDataset(torch.arange(100)), batch_size=4)
MB = 1 << 20


def service(**fields):
    facts = {"cpu_s": np.full(20, 0.001), "waiting_s": np.zeros(20), "sending_s": 0.0, "handover_s": 0.0}
    return WorkerCost(**{**facts, "first_s": 0.1, "batch_bytes": MB, "worker_bytes": MB, "last": None, **fields})


def trials(pattern=PATTERN):
    return SettingTrials(pattern, lambda batch: None, 5.0)


def test_sending_costs_workers_and_not_a_loop_that_makes_its_own_batches():
    found = service(sending_s=0.009)
    workload = workload_of(PATTERN, found, StepCost())
    assert round(expected(workload, found, Setting())) == 1000
    assert round(expected(workload, found, Setting(1))) == 100


def test_memory_bounds_the_number_of_workers_and_says_so(monkeypatch):
    monkeypatch.setattr(outlook, "shared_free_bytes", lambda: None)
    monkeypatch.setattr("penstock.plan.memory.free_bytes", lambda: 1000 * MB)
    few = worker_limit(trials(), service(worker_bytes=97 * MB), share=0.5)
    assert few.most == 4
    assert few.why.startswith("5 workers would not fit")
    assert worker_limit(trials(), service(worker_bytes=0, batch_bytes=0), share=0.5) == outlook.WorkerLimit(64)
    assert worker_limit(trials(), service(worker_bytes=9000 * MB), share=0.5).most == 1


def test_an_iterable_dataset_that_repeats_itself_has_room_for_one_worker():
    class Same(IterableDataset):
        def __iter__(self):
            return iter(range(8))

    assert worker_limit(trials(DataLoader(Same(), batch_size=2)), service(), share=0.5).most == 1
