"""Limits on the number of workers, the choice of a number, and that plan, tune and doctor name the same limit."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from penstock.model.workload import Workload
from penstock.plan.doctor.script import ScriptContext, script_checks
from penstock.plan.profiles import profile_goal
from penstock.plan.scenario import LoaderSettings, Scenario, TrainingContext
from penstock.plan.worker_count import (
    MAX_WORKERS,
    WorkerDemand,
    WorkerLimit,
    WorkerResources,
    candidate_counts,
    choose_worker_count,
    machine_cores,
    worker_limit,
    workers_to_keep_up,
)
from penstock.recording.format import Machine
from penstock.tuner.trials import SettingTrials
from penstock.tuner.worker_cost import WorkerCost

MB = 1_000_000
UNLIMITED = WorkerResources(cores=64.0, free_bytes=10**15, shared_free_bytes=10**15)
SMALL = WorkerDemand(batch_bytes=MB, worker_bytes=MB)


# -- limits --------------------------------------------------------------------------------------------------------


def test_a_machine_without_limits_limits_only_the_number_of_processes():
    assert worker_limit(UNLIMITED, SMALL) == WorkerLimit(MAX_WORKERS)
    assert worker_limit(WorkerResources(), WorkerDemand()) == WorkerLimit(MAX_WORKERS)


@pytest.mark.parametrize(
    ("cores", "share", "limit"), [(2.0, 1.0, 7), (2.5, 1.0, 9), (2.0, 0.5, 15), (4.0, 0.1, MAX_WORKERS), (0.2, 1.0, 1)]
)
def test_cores_limit_the_workers_that_compute(cores, share, limit):
    found = worker_limit(replace(UNLIMITED, cores=cores), replace(SMALL, computing_share=share))
    assert found.workers == limit
    assert found.runnable == MAX_WORKERS
    assert ("crowd" in found.reason) is (limit < MAX_WORKERS)
    assert found.note == ""


def test_workers_of_unknown_computing_share_are_not_limited_by_cores():
    assert worker_limit(replace(UNLIMITED, cores=1.0), SMALL) == WorkerLimit(MAX_WORKERS)


def test_memory_limits_the_workers_with_the_calculation_as_reason():
    # each worker: its process, 2 ready batches and 1 in progress; one more batch is in use
    found = worker_limit(replace(UNLIMITED, free_bytes=41 * MB), SMALL)
    assert (found.workers, found.runnable) == (10, 10)
    assert found.reason.startswith("11 workers would not fit: it needs 45 MB (11 workers × (prefetch 2 + 1")
    assert found.note == found.reason
    assert worker_limit(replace(UNLIMITED, free_bytes=41 * MB), SMALL, memory_share=0.5).workers == 4
    assert worker_limit(replace(UNLIMITED, free_bytes=1), SMALL).workers == 0


def test_shared_memory_limits_the_workers_separately():
    found = worker_limit(replace(UNLIMITED, shared_free_bytes=9 * MB), SMALL)
    assert found.workers == 4
    assert "shared memory" in found.reason
    assert worker_limit(replace(UNLIMITED, shared_free_bytes=9 * MB), replace(SMALL, pinned=True)).workers == 8


def test_unknown_memory_sets_no_limit():
    assert worker_limit(replace(UNLIMITED, free_bytes=None), SMALL).workers == MAX_WORKERS
    assert worker_limit(replace(UNLIMITED, free_bytes=1), replace(SMALL, batch_bytes=None)).workers == MAX_WORKERS


def test_batches_per_epoch_limit_the_useful_workers_only():
    found = worker_limit(UNLIMITED, replace(SMALL, epoch_batches=3))
    assert (found.workers, found.runnable) == (3, MAX_WORKERS)
    assert "3 batches" in found.reason
    assert found.note == ""


def test_iterable_dataset_limits_the_workers_that_can_run():
    found = worker_limit(UNLIMITED, replace(SMALL, dataset_workers=1, dataset_reason="It repeats samples"))
    assert found == WorkerLimit(1, "It repeats samples", runnable=1)
    assert found.note == "It repeats samples"
    assert "between 5 workers" in worker_limit(UNLIMITED, replace(SMALL, dataset_workers=5)).reason


def test_lowest_limit_is_named():
    demand = replace(SMALL, dataset_workers=6, epoch_batches=5, computing_share=1.0)
    assert worker_limit(replace(UNLIMITED, cores=1.0), demand).workers == 3
    assert worker_limit(replace(UNLIMITED, cores=2.0), demand).reason.startswith("An epoch has 5 batches")


def test_cores_of_a_machine_are_cut_to_the_quota():
    assert machine_cores(Machine(usable_cores=3, quota_cores=2.5)) == 2.5
    assert machine_cores(Machine(usable_cores=3)) == 3.0
    assert machine_cores(Machine(usable_cores=3, quota_cores=8.0)) == 3.0


# -- the same limit everywhere -------------------------------------------------------------------------------------


def test_plan_tune_and_doctor_name_the_same_limit(tmp_path):
    """The machine has two cores; the workers compute all the time and their batches fit into memory."""
    resources = WorkerResources(cores=2.0, free_bytes=10_000 * MB, shared_free_bytes=10_000 * MB)
    scenario = Scenario(
        workload=Workload(
            workers=1,
            prefetch=2,
            in_order=True,
            cores=2.0,
            cpu_s=np.full(40, 0.05),
            latency_s=np.zeros(1),
            receive_s=np.zeros(1),
            step_s=np.zeros(1),
            worker=np.zeros(40, np.int64),
        ),
        settings=LoaderSettings(num_workers=1),
        context=TrainingContext(
            free_bytes=10_000 * MB, shared_free_bytes=10_000 * MB, batch_bytes=MB, worker_bytes=MB, epoch_batches=250
        ),
        goal=profile_goal("balanced"),
    )
    loader = DataLoader(TensorDataset(torch.arange(1000)), batch_size=4)
    cost = WorkerCost(
        cpu_s=np.full(20, 0.05),
        waiting_s=np.zeros(20),
        sending_s=0.0,
        receive_s=0.0,
        first_s=0.1,
        batch_bytes=MB,
        worker_bytes=MB,
        last=None,
    )
    demand = SettingTrials(loader, lambda batch: None, 5.0).worker_demand(cost)
    doctor = ScriptContext(resources=resources, gpus=0, start_method="fork")
    script = tmp_path / "train.py"
    script.write_text("DataLoader(ds, num_workers=8)\n")
    (row, *_) = script_checks(script, doctor)
    assert scenario.worker_limit.workers == 7
    assert worker_limit(resources, demand, memory_share=0.5).workers == 7
    assert doctor.worker_limit.workers == 7
    assert "more than 7 mostly wait for each other" in row.meaning


# -- the choice ----------------------------------------------------------------------------------------------------


def saturating(number):
    return min(10.0, float(number)) + (0.02 if number >= 40 else 0.0)


def test_smallest_number_within_the_tolerance_is_chosen():
    assert choose_worker_count(saturating, 64, 0.03) == 10
    assert choose_worker_count(saturating, 4, 0.03) == 4
    assert choose_worker_count(lambda number: 10.0 - number, 8, 0.03) == 0
    assert choose_worker_count(lambda number: 10.0 - number, 8, 0.03, least=1) == 1
    assert choose_worker_count(saturating, 0, 0.03, least=1) == 1


@given(st.integers(0, 300), st.sampled_from([0.005, 0.03, 0.1]))
def test_choice_is_within_the_tolerance_of_the_best(limit, tolerance):
    chosen = choose_worker_count(saturating, limit, tolerance)
    assert 0 <= chosen <= limit
    assert saturating(chosen) >= (1 - tolerance) * max(map(saturating, range(limit + 1))) - 1e-9


@given(st.integers(0, 1000))
def test_candidates_hold_the_first_and_the_last_number_and_rise(limit):
    found = candidate_counts(limit)
    assert (found[0], found[-1]) == (0, limit)
    assert list(found) == sorted(set(found))
    assert all(later <= earlier * 5 / 4 + 1 for earlier, later in pairwise(found))


def test_workers_that_keep_up_with_the_step_exceed_its_rate():
    assert workers_to_keep_up(0.1, 0.03) == 5
    assert workers_to_keep_up(100.0, 0.001) == MAX_WORKERS
