"""The curve of samples per second over the number of workers, with the measured point."""

import pytest
from tests.diagnose.evidence.test_evidence import WORKERS, fetch, recorded, step
from tests.support.simulated_recordings import SAMPLES, TorchRun

from penstock.diagnose.worker_curve import CURVE_WORKERS_MAX, rates_over_workers


def test_the_curve_rises_until_the_workers_keep_up_and_is_flat_beyond():
    curve, measured = rates_over_workers(TorchRun(workers=2, cores=8, cpu_s=0.08, step_s=0.02, count=100).recording())
    rates = dict(curve)
    assert rates[1] < rates[2] < rates[4]
    assert rates[2] == pytest.approx(2 / 0.08 * SAMPLES, rel=0.05)
    assert rates[8] == pytest.approx(SAMPLES / 0.0202, rel=0.05)
    assert measured == ((2, pytest.approx(rates[2], rel=0.05)),)


def test_a_large_measured_number_of_workers_is_on_the_curve():
    run = TorchRun(workers=100, cores=4, cpu_s=0.01, count=200).recording()
    curve, ((workers, _),) = rates_over_workers(run)
    assert workers == 100
    assert 100 in dict(curve)
    assert max(count for count, _ in curve if count != 100) <= CURVE_WORKERS_MAX


def test_the_rate_is_in_batches_if_samples_were_not_counted():
    run = recorded([step(index) for index in range(40)], [fetch(index) for index in range(40)], settings=WORKERS)
    _, ((_, rate),) = rates_over_workers(run)
    assert rate == pytest.approx(1 / 0.03)


@pytest.mark.parametrize("fetches", [0, 2])
def test_without_fetches_there_is_no_curve(fetches):
    run = recorded([step(index) for index in range(40)], [fetch(index) for index in range(fetches)])
    assert rates_over_workers(run) == ((), ())


def test_a_recording_without_steps_has_no_curve():
    assert rates_over_workers(recorded()) == ((), ())
