"""The simulator's times are compared with those of the real DataLoader: its workers sleep for the same batches.

The simulator gets the times that the workers and the loop really took, but it does not know when the machine ran other
processes instead. So this needs a quiet machine; that both follow the same rules is tested without times in
tests/model/test_against_torch.py.
"""

import multiprocessing
import os
import time
from dataclasses import dataclass

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset, get_worker_info

from penstock.model.simulation_data import LATENCY, STAGES, WorkerPool, make_batch_costs
from penstock.model.simulator import simulate

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(
        "fork" not in multiprocessing.get_all_start_methods(), reason="workers must start at the same moment"
    ),
    # torch warns of more workers than cores; these sleep, so they take no core.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

LONG = 0.08
SHORT = 0.004
NEAR = LONG / 8
"""Seconds that a busy machine may add to any time."""


class SleepingDataset(Dataset):
    """A batch is (its number, the worker that made it, start, end)."""

    def __init__(self, work_s, lag_s):
        self.work_s, self.lag_s = work_s, lag_s

    def __len__(self):
        return len(self.work_s)

    def __getitem__(self, batch):
        info = get_worker_info()
        worker = -1 if info is None else info.id
        start = time.perf_counter()
        time.sleep(self.work_s[batch] + self.lag_s.get(worker, 0.0))
        return batch, worker, start, time.perf_counter()


def identity(batch):
    return batch


@dataclass
class RealRun:
    wait_s: np.ndarray
    step_s: np.ndarray
    ready_batches: np.ndarray
    batch: np.ndarray
    worker: np.ndarray
    took_s: np.ndarray
    """Seconds per batch; the first batch of each worker counts from the moment the earliest worker began."""

    @property
    def after_first_s(self):
        return float(self.wait_s[1:].sum() + self.step_s.sum())


def train(work_s, step_s, *, workers, prefetch=2, in_order=True, lag_s=None):
    """Iterate once over a real loader whose workers all begin at the same moment."""
    barrier = multiprocessing.get_context("fork").Barrier(max(1, workers))
    extra = {"prefetch_factor": prefetch, "multiprocessing_context": "fork"} if workers else {}
    loader = DataLoader(
        SleepingDataset(work_s, lag_s or {}),
        batch_size=None,
        collate_fn=identity,
        num_workers=workers,
        in_order=in_order,
        worker_init_fn=lambda _: barrier.wait(),
        **extra,
    )
    iterator = iter(loader)
    rows = []
    requested, ready = time.perf_counter(), 0
    for made in iterator:
        received = time.perf_counter()
        time.sleep(step_s)
        next_requested = time.perf_counter()
        rows.append((received - requested, next_requested - received, ready, *made))
        requested, ready = next_requested, count_ready(iterator) if workers else 0
    wait, step, ready, batch, worker, start, end = np.array(rows).T
    for number in set(worker) - {-1}:
        first = np.flatnonzero(worker == number)[np.argmin(start[worker == number])]
        start[first] = start.min()
    took = (end - start)[np.argsort(batch)]
    return RealRun(wait, step, ready.astype(int), batch.astype(int), worker.astype(int), took)


def count_ready(iterator):
    """Return the number of batches that are in torch's queue or were set aside until the ones before them arrive."""
    return iterator._data_queue.qsize() + sum(len(info) == 2 for info in iterator._task_info.values())


def simulate_same(real, *, workers, prefetch=2):
    """Simulate a run with the times of the real one."""
    return simulate(
        make_batch_costs(len(real.took_s), latency_s=real.took_s, step_s=real.step_s), WorkerPool(workers, prefetch)
    )


def assert_similar(result, real):
    """Compare step by step, without the first: its wait is the start of the workers, which is not simulated."""
    difference_s = abs(result.end_s - result.received_s[0] - real.after_first_s)
    assert difference_s < 0.15 * real.after_first_s + 3 * NEAR  # a short run may be delayed by other processes
    assert np.median(np.abs(result.wait_s - real.wait_s)[1:]) < NEAR


def assert_waits_only_in(slow, wait_s):
    """Assert that steps wait for long where `slow` says so, and nowhere else."""
    slow = np.asarray(slow)[1:]
    wait_s = wait_s[1:]
    assert np.median(wait_s[slow]) > LONG / 2  # waits are far shorter, or about LONG: none is near this limit
    assert np.median(wait_s[~slow]) < NEAR


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (2, 1), (2, 2), (4, 2), (4, 12), (8, 1), (8, 2), (8, 12)])
def test_slow_workers_stall_the_loop_every_w_steps_whatever_the_prefetch(workers, prefetch):
    real = train([LONG] * workers * 4, 0.0, workers=workers, prefetch=prefetch)
    result = simulate_same(real, workers=workers, prefetch=prefetch)
    assert_similar(result, real)
    stalls = np.arange(4 * workers) % workers == 0
    for each in (result, real):
        assert np.median(each.ready_batches[stalls]) == 0
        if workers > 1:
            assert_waits_only_in(stalls, each.wait_s)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_lagging_worker_is_awaited_while_the_others_batches_are_ready(prefetch):
    workers = 4
    real = train([SHORT] * 40, SHORT, workers=workers, prefetch=prefetch, lag_s={1: LONG})
    result = simulate_same(real, workers=workers, prefetch=prefetch)
    assert_similar(result, real)
    for each in (result, real):
        assert_waits_only_in(np.arange(40) % workers == 1, each.wait_s)
    stalls = slice(1 + 4 * workers, 40 - workers * prefetch, workers)
    full = (workers - 1) * prefetch
    for ready in (result.ready_batches[stalls], real.ready_batches[stalls]):
        assert np.median(ready) == pytest.approx(full, abs=1)


def test_out_of_order_delivery_is_not_delayed_by_a_lagging_worker():
    lag = np.zeros((len(STAGES), 4))
    lag[LATENCY, 1] = LONG
    real = train([SHORT] * 60, SHORT, workers=4, in_order=False, lag_s={1: LONG})
    ideal = make_batch_costs(60, latency_s=SHORT, step_s=SHORT)
    result = simulate(ideal, WorkerPool(4, in_order=False, lag=lag))
    in_order = simulate(ideal, WorkerPool(4, lag=lag))
    made = np.bincount(real.worker, minlength=4)
    assert np.bincount(result.worker, minlength=4)[1] == pytest.approx(made[1], abs=2)
    assert made[1] <= 6
    assert sorted(real.batch) == sorted(result.batch) == list(range(60))
    assert list(real.batch) != sorted(real.batch)
    assert max(real.after_first_s, result.end_s) < in_order.end_s / 2


@pytest.mark.parametrize("prefetch", [1, 6])
def test_stragglers_cost_the_time_that_prefetching_cannot_hide(prefetch):
    work_s = [2 * LONG if batch % 13 == 5 else SHORT for batch in range(60)]
    real = train(work_s, 2 * SHORT, workers=4, prefetch=prefetch)
    result = simulate_same(real, workers=4, prefetch=prefetch)
    assert_similar(result, real)
    assert np.corrcoef(result.wait_s[1:], real.wait_s[1:])[0, 1] > 0.9


def test_a_slow_step_finds_all_prefetched_batches_ready():
    real = train([SHORT] * 16, LONG / 2, workers=2, prefetch=3)
    result = simulate_same(real, workers=2, prefetch=3)
    assert_similar(result, real)
    assert max(np.median(result.wait_s), np.median(real.wait_s)) < NEAR
    assert max(real.ready_batches) == max(result.ready_batches) == 6


def test_without_workers_every_batch_is_waited_for():
    real = train([LONG / 2] * 6, SHORT, workers=0)
    result = simulate_same(real, workers=0)
    assert_similar(result, real)
    assert np.median(real.wait_s) > LONG / 4


def spin(seconds):
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


class SpinningDataset(SleepingDataset):
    def __getitem__(self, batch):
        spin(self.work_s[batch])
        return batch


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform cannot pin a process to a core")
def test_four_workers_on_one_core_are_never_faster_than_the_core():
    core = min(os.sched_getaffinity(0))
    loader = DataLoader(
        SpinningDataset([SHORT] * 24, {}),
        batch_size=None,
        collate_fn=identity,
        num_workers=4,
        multiprocessing_context="fork",
        worker_init_fn=lambda _: os.sched_setaffinity(0, {core}),
    )
    start = time.perf_counter()
    assert len(list(loader)) == 24
    real_s = time.perf_counter() - start
    simulated = simulate(make_batch_costs(24, cpu_s=SHORT), WorkerPool(4, cores=1))
    assert simulated.end_s == pytest.approx(24 * SHORT)
    assert real_s >= simulated.end_s * 0.98
