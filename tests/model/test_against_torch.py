"""The simulator follows the rules of torch's DataLoader: which worker makes a batch, when, and in what order they come.

The workers of a real DataLoader wait until a test releases a batch, so the order of events is the test's and no time is
measured. The simulator gets times that lead to the same order.
"""

import multiprocessing

import numpy as np
import pytest
from tests.support.waiting import wait_until
from torch.utils.data import DataLoader, Dataset, get_worker_info

from penstock.model.simulation_data import LATENCY, STAGES, WorkerPool, make_batch_costs
from penstock.model.simulator import simulate

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
HELD_S = 1000.0
"""Seconds that the simulator gets for a batch that is not released while others are made."""


class HeldBatches(Dataset):
    """A batch is (its number, its worker); a worker begins to make it at once, and ends when the test releases it."""

    def __init__(self, batches):
        context = multiprocessing.get_context("fork")
        self.released = [context.Event() for _ in range(batches)]

    def __len__(self):
        return len(self.released)

    def __getitem__(self, batch):
        assert self.released[batch].wait(60)
        return batch, get_worker_info().id


class HeldLoader:
    """A real DataLoader over such batches."""

    def __init__(self, batches, workers, prefetch, *, in_order=True):
        self.dataset = HeldBatches(batches)
        self.iterator = iter(
            DataLoader(
                self.dataset,
                batch_size=None,
                num_workers=workers,
                prefetch_factor=prefetch,
                in_order=in_order,
                multiprocessing_context="fork",
            )
        )

    def release(self, *batches):
        for batch in batches:
            self.dataset.released[batch].set()

    def next(self):
        return tuple(next(self.iterator))

    @property
    def assigned(self):
        """Number of batches that workers have been given so far."""
        return self.iterator._send_idx

    @property
    def ready(self):
        """Number of batches that are made and have not been received."""
        set_aside = sum(len(info) == 2 for info in self.iterator._task_info.values())
        return self.iterator._data_queue.qsize() + set_aside

    def finish(self):
        self.release(*range(len(self.dataset)))
        return [*self.iterator]


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 4), (3, 1), (3, 2), (4, 3)])
def test_tasks_are_assigned_in_turn_and_one_more_for_each_batch_received(workers, prefetch):
    batches = workers * prefetch + 2 * workers
    loader = HeldLoader(batches, workers, prefetch)
    loader.release(*range(batches))
    found = []
    for step in range(batches):
        assert loader.assigned == min(batches, workers * prefetch + step)
        found.append(loader.next())
    result = simulate(make_batch_costs(batches, latency_s=1.0), WorkerPool(workers, prefetch))
    assert found == list(zip(result.batch.tolist(), result.worker.tolist(), strict=True))
    assert found == [(batch, batch % workers) for batch in range(batches)]


@pytest.mark.parametrize(("workers", "prefetch"), [(2, 1), (3, 2), (4, 3)])
def test_while_one_batch_is_awaited_the_other_workers_make_all_that_they_have_been_given(workers, prefetch):
    batches = 2 * workers * prefetch
    loader = HeldLoader(batches, workers, prefetch)
    loader.release(*(batch for batch in range(batches) if batch != 1))
    assert loader.next() == (0, 0)
    made = [batch for batch in range(2, loader.assigned) if batch % workers != 1]
    wait_until(lambda: loader.ready == len(made), f"the batches {made}")
    loader.release(1)
    assert [batch for batch, _ in loader.finish()] == list(range(1, batches))
    latency_s = np.array([HELD_S if batch == 1 else 0.001 for batch in range(batches)])
    result = simulate(make_batch_costs(batches, latency_s=latency_s, step_s=1.0), WorkerPool(workers, prefetch))
    assert result.ready_batches[1] == len(made)
    assert np.flatnonzero(result.finished_s < HELD_S).tolist() == [0, *made]


def test_out_of_order_delivery_leaves_the_worker_of_a_held_batch_without_new_tasks():
    workers, prefetch, batches = 4, 2, 40
    loader = HeldLoader(batches, workers, prefetch, in_order=False)
    loader.release(*(batch for batch in range(batches) if batch != 1))
    found = [loader.next() for _ in range(batches - prefetch)]
    assert 1 not in dict(found)
    found += loader.finish()
    assert sorted(batch for batch, _ in found) == list(range(batches))
    made = np.bincount([worker for _, worker in found], minlength=workers)
    lag = np.zeros((len(STAGES), workers))
    lag[LATENCY, 1] = HELD_S
    result = simulate(
        make_batch_costs(batches, latency_s=0.001, step_s=0.001), WorkerPool(workers, prefetch, in_order=False, lag=lag)
    )
    assert made[1] == np.bincount(result.worker, minlength=workers)[1] == prefetch
    assert result.batch.tolist() != sorted(result.batch.tolist())


def test_a_slow_step_finds_all_batches_ready_that_workers_have_been_given():
    workers, prefetch, batches = 2, 3, 12
    loader = HeldLoader(batches, workers, prefetch)
    loader.release(*range(batches))
    found = []
    for step in range(batches):
        expected = min(workers * prefetch, batches - step)
        wait_until(lambda expected=expected: loader.ready == expected, f"{expected} batches")
        found.append(expected)
        loader.next()
    result = simulate(make_batch_costs(batches, latency_s=0.001, step_s=1.0), WorkerPool(workers, prefetch))
    assert result.ready_batches[1:].tolist() == found[1:]
