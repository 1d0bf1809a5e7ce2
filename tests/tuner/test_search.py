"""The model's forecast, the search for the number of workers, and the choice of settings."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from penstock.model.workload import Workload
from penstock.plan import worker_count
from penstock.plan.worker_count import WorkerLimit, WorkerResources, worker_limit
from penstock.tuner.measure import StepCost
from penstock.tuner.result import WorkerSettings
from penstock.tuner.search import (
    choose,
    forecast_rate,
    forecast_workload,
    knee,
    model_guess,
    model_rate,
    next_workers,
    rates_by_workers,
    variants,
)
from penstock.tuner.trials import SettingTrials
from penstock.tuner.worker_cost import WorkerCost

LIMIT = 64


def search(curve, guess, limit=LIMIT, tolerance=0.03):
    """Measure the requested numbers until the search ends; return the rates in the order of measurement."""
    measured = {}
    while (workers := next_workers(measured, guess, limit, tolerance)) is not None:
        assert workers not in measured
        assert 1 <= workers <= limit
        measured[workers] = curve(workers)
    return measured


def workload(*, cpu_s=0.0, latency_s=0.0, step_s=0.0, cores=4.0, count=60, **fields):
    return Workload(
        workers=1,
        prefetch=2,
        in_order=True,
        cores=cores,
        cpu_s=np.resize(np.asarray(cpu_s, float), count),
        latency_s=np.resize(np.asarray(latency_s, float), count),
        receive_s=np.zeros(1),
        step_s=np.full(1, step_s),
        worker=np.zeros(count, np.int64),
        **fields,
    )


def test_model_guess_is_measured_first():
    assert next_workers({}, 6, LIMIT, 0.03) == 6
    assert next_workers({0: 10.0}, 6, 4, 0.03) == 4


@pytest.mark.parametrize("guess", [1, 3, 4, 8, 40, 64])
def test_smallest_number_that_saturates_the_rate_is_found(guess):
    measured = search(lambda workers: min(workers, 4) * 10.0, guess)
    assert knee(measured, 0.03) == 4
    assert len(measured) <= 11


@pytest.mark.parametrize("guess", [1, 2, 16, 64])
def test_few_workers_are_found_for_a_thrashing_disk(guess):
    measured = search(lambda workers: 100.0 / (1 + 0.2 * max(0, workers - 2)) * min(1, workers / 2), guess)
    assert knee(measured, 0.03) == 2
    assert len(measured) <= 9


def test_noise_on_a_plateau_does_not_raise_the_number():
    rates = {2: 100.0, 3: 101.0, 1: 55.0}
    measured = search(lambda workers: rates.get(workers, 101.5), 2)
    assert max(measured) <= 5
    assert knee(measured, 0.03) == 2


def test_good_guess_needs_few_measurements():
    assert len(search(lambda workers: min(workers, 8), 8)) <= 5


def test_search_ends_when_every_run_fails():
    assert set(search(lambda workers: 0.0, 8)) >= {8, 1}


@given(
    peak=st.integers(1, LIMIT),
    decline=st.floats(0, 0.3),
    guess=st.integers(1, LIMIT),
    limit=st.integers(1, LIMIT),
)
@example(peak=58, decline=0.0546875, guess=20, limit=63)  # as good at 45 as at 63, and better between
def test_search_reaches_nearly_the_peak_of_any_unimodal_curve(peak, decline, guess, limit):
    def curve(workers):
        return min(workers, peak) / (1 + decline * max(0, workers - peak))

    measured = search(curve, guess, limit)
    chosen = curve(knee(measured, 0.03))
    assert chosen >= 0.8 * max(curve(workers) for workers in range(1, limit + 1))
    assert len(measured) <= 16


def test_guess_for_computing_workers_is_the_number_of_cores():
    assert model_guess(workload(cpu_s=0.01, cores=4.0), LIMIT, 0.03) == 4


def test_guess_for_waiting_workers_keeps_up_with_the_step():
    assert model_guess(workload(latency_s=0.1, step_s=0.01, cores=2.0), LIMIT, 0.03) == pytest.approx(
        ceil(0.1 / 0.01), 1
    )


def test_guess_is_at_least_one_if_the_step_limits_the_rate():
    assert model_guess(workload(cpu_s=0.001, step_s=1.0), LIMIT, 0.03) == 1


def test_even_batches_need_no_variants():
    assert variants(workload(latency_s=0.02, step_s=0.01), WorkerSettings(2)) == ()
    assert variants(workload(latency_s=0.02), WorkerSettings()) == ()


def test_uneven_batches_need_a_deeper_prefetch():
    uneven = workload(latency_s=[0.004] * 12 + [0.08], step_s=0.008, count=130)
    found = variants(uneven, WorkerSettings(4))
    assert any(setting.prefetch > 2 for setting in found)
    assert all(model_rate(uneven, setting) > 1.03 * model_rate(uneven, WorkerSettings(4)) for setting in found)
    assert all(setting.prefetch == 2 for setting in variants(uneven, WorkerSettings(4), deeper=False))
    assert all(setting.in_order for setting in variants(uneven, WorkerSettings(4), out_of_order=False))


def test_fewest_workers_within_the_tolerance_are_chosen():
    rates = {WorkerSettings(): 10.0, WorkerSettings(2): 50.0, WorkerSettings(4): 98.0, WorkerSettings(6): 100.0}
    assert choose(rates, 0.03, step_known=True) == WorkerSettings(4)
    assert choose(rates, 0.005, step_known=True) == WorkerSettings(6)


def test_order_is_given_up_after_prefetch():
    rates = {WorkerSettings(4): 80.0, WorkerSettings(4, 8): 98.0, WorkerSettings(4, in_order=False): 100.0}
    assert choose(rates, 0.03, step_known=True) == WorkerSettings(4, 8)


def test_no_workers_are_cheapest_beside_a_measured_step():
    rates = {WorkerSettings(): 99.0, WorkerSettings(2): 100.0}
    assert choose(rates, 0.03, step_known=True) == WorkerSettings()


def test_no_workers_without_a_step_are_chosen_only_if_all_others_are_slower():
    assert choose({WorkerSettings(): 99.0, WorkerSettings(2): 100.0}, 0.03, step_known=False) == WorkerSettings(2)
    assert choose({WorkerSettings(): 101.0, WorkerSettings(2): 100.0}, 0.03, step_known=False) == WorkerSettings()


@given(
    rates=st.dictionaries(st.integers(0, 8).map(WorkerSettings), st.floats(1, 1000), min_size=1),
    step_known=st.booleans(),
)
def test_choice_is_never_slower_than_torch_defaults(rates, step_known):
    chosen = choose(rates, 0.03, step_known=step_known)
    assert rates[chosen] >= min(rates.get(WorkerSettings(), 0.0), max(rates.values()))


def test_rates_by_workers_leaves_out_variants():
    assert rates_by_workers(
        {WorkerSettings(2): 1.0, WorkerSettings(2, 8): 2.0, WorkerSettings(3, in_order=False): 3.0}
    ) == {2: 1.0}


# -- the forecast ----------------------------------------------------------------------------------------------------

LOADER = DataLoader(TensorDataset(torch.arange(100)), batch_size=4)
MB = 1 << 20


def worker_cost(**fields):
    facts = {"cpu_s": np.full(20, 0.001), "waiting_s": np.zeros(20), "sending_s": 0.0, "receive_s": 0.0}
    return WorkerCost(**{**facts, "first_s": 0.1, "batch_bytes": MB, "worker_bytes": MB, "last": None, **fields})


def limit_of(cost, loader=LOADER):
    demand = SettingTrials(loader, lambda batch: None, 5.0).worker_demand(cost)
    return worker_limit(replace(WorkerResources.of_this_rank(), cores=64.0), demand, memory_share=0.5)


def test_sending_costs_workers_but_not_a_loop_that_makes_its_own_batches():
    cost = worker_cost(sending_s=0.009)
    workload = forecast_workload(LOADER, cost, StepCost())
    assert round(forecast_rate(workload, cost, WorkerSettings())) == 1000
    assert round(forecast_rate(workload, cost, WorkerSettings(1))) == 100


def test_memory_limits_the_number_of_workers(monkeypatch):
    monkeypatch.setattr(worker_count, "shared_free_bytes", lambda: None)
    monkeypatch.setattr(worker_count, "free_bytes", lambda: 1000 * MB)
    loader = DataLoader(TensorDataset(torch.arange(1000)), batch_size=4)
    few = limit_of(worker_cost(worker_bytes=97 * MB), loader)
    assert few.workers == few.runnable == 4
    assert few.reason.startswith("5 workers would not fit")
    assert limit_of(worker_cost(worker_bytes=0, batch_bytes=0), loader) == WorkerLimit(64)
    assert limit_of(worker_cost(worker_bytes=9000 * MB), loader).workers == 0


def test_iterable_dataset_that_repeats_samples_is_limited_to_one_worker():
    class Same(IterableDataset):
        def __iter__(self):
            return iter(range(8))

    limit = limit_of(worker_cost(), DataLoader(Same(), batch_size=2))
    assert (limit.workers, limit.runnable) == (1, 1)
    assert "the same samples" in limit.reason
