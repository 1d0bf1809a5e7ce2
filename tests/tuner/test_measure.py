"""Short runs of loaders and steps, with a fake clock."""

import multiprocessing
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from penstock.errors import PenstockError
from penstock.testing import FakeClock
from penstock.tuner.measure import SameSeed, StepFailed, measure_rate, time_step, workers_repeat_samples

FOREVER = float("inf")


def loader(samples=400, **settings):
    return DataLoader(TensorDataset(torch.arange(samples)), **settings)


def run(loader, step_s=0.5, seconds=2.0, until_s=FOREVER, step=None):
    clock = FakeClock()
    return measure_rate(
        loader, step or (lambda batch: clock.advance(step_s)), seconds=seconds, until_s=until_s, clock=clock
    )


def test_rate_is_that_of_the_loop():
    found = run(loader())
    assert found.batches_s == pytest.approx(2.0)
    assert found.first_s == 0.0
    assert not found.short


@pytest.mark.parametrize("workers", [1, 2])
def test_rate_is_measured_over_whole_windows_after_the_warm_up(workers):
    found = run(loader(num_workers=workers, prefetch_factor=3))
    assert found.batches_s == pytest.approx(2.0)
    assert (found.batches - 1) % workers == 0
    assert found.batches - 1 >= workers * 3 + 2 * workers
    assert multiprocessing.active_children() == []


def test_slow_warm_up_is_not_counted():
    clock = FakeClock()
    steps = iter([100.0] + [1.0] * 1000)
    found = measure_rate(loader(), lambda batch: clock.advance(next(steps)), seconds=5, until_s=FOREVER, clock=clock)
    assert found.batches_s == pytest.approx(1.0)


def test_one_window_is_enough_for_slow_batches():
    found = run(loader(), step_s=60.0)
    assert found.batches == 3


def test_run_ends_when_the_time_is_over():
    found = run(loader(), step_s=1.0, seconds=100.0, until_s=7.0)
    assert found.batches == 8
    assert found.batches_s == pytest.approx(1.0)


def test_data_that_ends_early_gives_a_rate_marked_as_short():
    found = run(loader(3, num_workers=1, prefetch_factor=4))
    assert found.short
    assert found.batches_s == pytest.approx(2.0)


def test_single_batch_gives_no_rate():
    with pytest.raises(PenstockError, match="too few"):
        run(loader(1))


def test_step_that_raises_is_distinguished_from_loading():
    def step(batch):
        raise KeyError("lr")

    with pytest.raises(StepFailed) as failed:
        run(loader(num_workers=1), step=step)
    assert isinstance(failed.value.__cause__, KeyError)
    assert multiprocessing.active_children() == []


def test_step_is_timed_after_one_untimed_call():
    batches = []
    cost = time_step(batches.append, "batch", until_s=FOREVER)
    assert batches == ["batch"] * 6
    assert 0 <= cost.cpu_s <= cost.step_s


def test_slow_step_is_timed_once():
    batches = []
    time_step(batches.append, "batch", until_s=0.0)
    assert len(batches) == 2


# -- whether an iterable dataset divides its samples -----------------------------------------------------------------


class Repeating(IterableDataset):
    def __iter__(self):
        for number in range(8):
            yield {"number": number, "noise": torch.rand(2), "more": (np.random.rand(2), random.random())}


class Dividing(Repeating):
    def __iter__(self):
        worker = get_worker_info()
        return (sample for number, sample in enumerate(super().__iter__()) if number % worker.num_workers == worker.id)


class Few(IterableDataset):
    """Gives its only sample to the first worker."""

    def __iter__(self):
        return iter([1] if get_worker_info().id == 0 else [])


def identity(batch):
    return batch


def two_workers(dataset, init_fn=None):
    return DataLoader(dataset, num_workers=2, prefetch_factor=1, batch_size=2, worker_init_fn=SameSeed(init_fn))


def test_repeated_samples_are_found_in_a_dataset_that_draws_random_numbers():
    assert workers_repeat_samples(two_workers(Repeating()))


def test_dataset_that_divides_its_samples_repeats_none():
    assert not workers_repeat_samples(two_workers(Dividing()))


def test_dataset_without_samples_for_the_second_worker_repeats_none():
    assert not workers_repeat_samples(two_workers(Few()))


def test_given_worker_init_fn_is_called_first():
    called = []
    SameSeed(called.append)(3)
    first = float(torch.rand(1)), random.random(), np.random.rand()
    SameSeed(None)(4)
    assert called == [3]
    assert first == (float(torch.rand(1)), random.random(), np.random.rand())


@pytest.mark.parametrize("sample", [[1, 2], "a", {"x": np.ones(2)}, torch.ones(2), (torch.ones(1), "b")])
def test_batches_of_every_type_are_compared(sample):
    class Same(IterableDataset):
        def __iter__(self):
            return iter([sample])

    assert workers_repeat_samples(DataLoader(Same(), num_workers=2, batch_size=None, collate_fn=identity))
