import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from penstock.errors import PenstockError
from penstock.testing import FakeClock
from penstock.tuner.measure import StepFailed, measure_rate, time_step

FOREVER = float("inf")


def loader(samples=400, **settings):
    return DataLoader(TensorDataset(torch.arange(samples)), **settings)


def run(loader, step_s=0.5, seconds=2.0, until_s=FOREVER, step=None):
    clock = FakeClock()
    return measure_rate(
        loader, step or (lambda batch: clock.advance(step_s)), seconds=seconds, until_s=until_s, clock=clock
    )


def test_the_rate_is_that_of_the_loop():
    found = run(loader())
    assert found.batches_s == pytest.approx(2.0)
    assert found.first_s == 0.0
    assert not found.short


@pytest.mark.parametrize("workers", [1, 2])
def test_the_rate_is_taken_over_whole_windows_after_the_warm_up(workers):
    found = run(loader(num_workers=workers, prefetch_factor=3))
    assert found.batches_s == pytest.approx(2.0)
    assert (found.batches - 1) % workers == 0
    assert found.batches - 1 >= workers * 3 + 2 * workers
    assert multiprocessing.active_children() == []


def test_a_slow_warm_up_is_not_counted():
    clock = FakeClock()
    steps = iter([100.0] + [1.0] * 1000)
    found = measure_rate(loader(), lambda batch: clock.advance(next(steps)), seconds=5, until_s=FOREVER, clock=clock)
    assert found.batches_s == pytest.approx(1.0)


def test_slow_batches_are_satisfied_with_one_window():
    found = run(loader(), step_s=60.0)
    assert found.batches == 3


def test_time_that_is_out_ends_a_run():
    found = run(loader(), step_s=1.0, seconds=100.0, until_s=7.0)
    assert found.batches == 8
    assert found.batches_s == pytest.approx(1.0)


def test_data_that_is_over_early_still_gives_a_rate_and_says_so():
    found = run(loader(3, num_workers=1, prefetch_factor=4))
    assert found.short
    assert found.batches_s == pytest.approx(2.0)


def test_a_single_batch_tells_no_rate():
    with pytest.raises(PenstockError, match="too few"):
        run(loader(1))


def test_a_step_that_raises_is_told_from_loading_that_raises():
    def step(batch):
        raise KeyError("lr")

    with pytest.raises(StepFailed) as failed:
        run(loader(num_workers=1), step=step)
    assert isinstance(failed.value.__cause__, KeyError)
    assert multiprocessing.active_children() == []


def test_a_step_is_timed_some_times_after_one_that_is_not():
    seen = []
    cost = time_step(seen.append, "batch", until_s=FOREVER)
    assert seen == ["batch"] * 6
    assert 0 <= cost.cpu_s <= cost.step_s


def test_a_slow_step_is_timed_once():
    seen = []
    time_step(seen.append, "batch", until_s=0.0)
    assert len(seen) == 2
