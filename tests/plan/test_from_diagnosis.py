"""Plans for simulated runs whose cause is known, and for recordings of real trainings."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec import structs
from tests.support.paths import DATA_FILES
from tests.support.simulated_recordings import SAMPLES, TorchRun

from penstock.core.plan import Plan
from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import diagnose_run
from penstock.errors import SettingError
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.plan.predict import predict
from penstock.plan.scenario_from_evidence import UNDETERMINED, observed_context, observed_settings, observed_workload
from penstock.recording.format import Gpu, LoaderLine, LoaderSetting, ProcessLoad, RunLine
from penstock.recording.reader import Recording, load

MB = 1 << 20
READING = {"states": {"read": 85}, "fetch": {"read_bytes": 8 * MB, "reads": 16}}
SHARED_DISK = {"sequential_alone": 160 * MB, "sequential_together": 165 * MB}
THRASHING_DISK = {
    "sequential_alone": 260 * MB,
    "sequential_together": 100 * MB,
    "random_alone": 90 * MB,
    "random_together": 30 * MB,
}
"""Rates of a disk whose bandwidth is shared, and of one with seeks: bytes per second of one reader and of all."""


def plan_for_recording(recording, profile="balanced", **options):
    return plan_from_diagnosis(diagnose_run(recording), profile, **options)


def thrashing(readers):
    """Return the throughput for so many readers, relative to that for one."""
    return 1.0 if readers == 1 else 1 / readers**0.7


def plan(run, **options):
    return plan_for_recording(run.recording(), **options)


def change(plan, name):
    return next((change for change in plan.changes if change.name == name), None)


# -- rates and gains -----------------------------------------------------------------------------------------------


def test_the_measured_rate_is_samples_per_batch_over_the_time_of_a_batch():
    found = plan(TorchRun(step_s=0.02, receive_s=0.0, cpu_s=0.001))
    assert found.samples_s == pytest.approx(SAMPLES / 0.02, rel=0.02)
    assert found.most_gain == pytest.approx(0.0, abs=0.02)
    assert found.source == "recording"


def test_a_healthy_run_gets_no_changes():
    found = plan(TorchRun())
    assert [change for change in found.changes if change.scope == "dataloader"] == []
    assert found.planned_samples_s == pytest.approx(found.samples_s, rel=0.02)
    assert found.dataloader["num_workers"] == 4


def test_more_workers_are_proposed_with_their_gain_if_there_are_too_few():
    found = plan(TorchRun(workers=1, cpu_s=0.05, step_s=0.01))
    workers = change(found, "num_workers")
    assert 5 <= workers.then <= 8
    assert found.planned_samples_s == pytest.approx(found.samples_s * 5, rel=0.15)
    assert found.planned_samples_s <= found.samples_s * (1 + found.most_gain) * 1.03
    assert found.limits[0].name == "workers"
    assert found.dataloader["num_workers"] == workers.then


def test_workers_are_proposed_for_a_loader_without_any():
    found = plan(TorchRun(workers=0, cpu_s=0.02))
    assert change(found, "num_workers").now == 0
    assert found.limits[0].name == "main"
    assert found.planned_samples_s == pytest.approx(2 * found.samples_s, rel=0.1)


def test_more_workers_are_not_proposed_if_the_cores_are_busy():
    found = plan(TorchRun(cores=2, cpu_s=0.2, step_s=0.01))
    assert change(found, "num_workers") is None
    assert found.limits[0].name == "cpu"


@pytest.mark.parametrize("profile", ["balanced", "speed", "memory"])
def test_changes_are_sorted_by_gain(profile):
    found = plan(TorchRun(workers=1, cpu_s=0.05, step_s=0.01, epochs=4, count=40, startup_s=2.0), profile=profile)
    gains = [change.gain for change in found.changes if change.gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert found.profile == profile


# -- causes with similar symptoms ----------------------------------------------------------------------------------


def test_latency_leads_to_more_workers():
    slow = TorchRun(workers=4, cpu_s=0.01, latency_s=0.2, states={"network": 80}, fetch={"read_bytes": MB, "reads": 16})
    found = plan(slow)
    assert change(found, "num_workers").then > 8
    assert found.loader["reading"]["num_readers"] > 4


def test_a_disk_at_its_bandwidth_does_not_lead_to_more_workers():
    found = plan(TorchRun(workers=4, cpu_s=0.005, io_s=0.05, after=SHARED_DISK, **READING))
    assert change(found, "num_workers") is None
    assert found.limits[0].name == "bandwidth"
    assert found.loader["reading"]["num_readers"] == 2


def test_a_thrashing_disk_leads_to_fewer_workers():
    found = plan(TorchRun(workers=4, cpu_s=0.005, io_s=0.03, storage=thrashing, after=THRASHING_DISK, **READING))
    assert change(found, "num_workers").then in (1, 2)
    assert change(found, "num_workers").gain > 0.3
    assert found.loader["reading"]["num_readers"] == 1


def test_waiting_of_unknown_cause_gets_no_gain_and_a_note_with_an_experiment():
    found = plan(TorchRun(workers=4, cpu_s=0.005, latency_s=0.2, **READING))
    assert change(found, "num_workers") is None
    assert UNDETERMINED in found.notes


def test_waiting_for_a_lock_does_not_lead_to_more_workers():
    found = plan(TorchRun(workers=4, cpu_s=0.01, latency_s=0.15, states={"lock": 80}))
    assert change(found, "num_workers") is None


def test_a_lagging_worker_leads_to_delivery_out_of_order():
    found = plan(TorchRun(workers=4, lag={2: 0.3}, step_s=0.01, settings={"in_order": True}), pinned={"num_workers"})
    assert change(found, "in_order").then is False
    assert found.dataloader["in_order"] is False


def test_the_time_of_the_sampler_is_not_saved_by_removing_the_workers():
    found = plan(TorchRun(phases={"sampler": 0.006}, receive_s=0.0065, cpu_s=0.004))
    assert change(found, "num_workers") is None
    assert found.planned_samples_s == pytest.approx(found.samples_s, rel=0.01)


def test_rates_include_the_start_of_workers_and_a_note_says_so():
    found = plan(TorchRun(epochs=6, count=25, startup_s=0.6, settings={"persistent_workers": False}))
    assert found.samples_s == pytest.approx(25 * SAMPLES / (25 * 0.0202 + 0.6), rel=0.05)
    assert found.planned_samples_s > 1.5 * found.samples_s
    assert any("Rates are those of whole epochs with the start of workers" in note for note in found.notes)


def test_a_dataset_that_divides_its_samples_between_two_workers_gets_no_more():
    recording = TorchRun(workers=4, cpu_s=0.1, step_s=0.01, dataset_size=None).recording()
    fetches = tuple(msgspec.structs.replace(fetch, worker=fetch.batch % 2) for fetch in recording.fetches)
    found = plan_for_recording(replace(recording, fetches=fetches))
    assert change(found, "num_workers") is None
    assert any("divides its samples itself, between 2 of 4" in note for note in found.notes)


def test_the_model_of_a_shared_device_predicts_the_measured_rate():
    run = TorchRun(workers=4, cpu_s=0.005, io_s=0.05, after=SHARED_DISK, **READING)
    evidence = gather(run.recording())[0]
    workload, notes = observed_workload(evidence)
    assert notes == ()
    assert predict(workload).batches_s == pytest.approx(1 / evidence.loop.cycle_s, rel=0.1)


# -- settings and context ------------------------------------------------------------------------------------------


def test_observed_settings_are_those_in_force():
    in_force = {"pin_memory": True, "persistent_workers": True, "in_order": False, "multiprocessing_context": "spawn"}
    found = observed_settings(gather(TorchRun(settings=in_force).recording())[0])
    assert (found.num_workers, found.prefetch_factor) == (4, 2)
    assert (found.pin_memory, found.persistent_workers, found.in_order) == (True, True, False)
    assert found.multiprocessing_context == "spawn"


def test_short_epochs_lead_to_persistent_workers():
    found = plan(TorchRun(epochs=6, count=25, startup_s=0.6, settings={"persistent_workers": False}))
    persistent = change(found, "persistent_workers")
    epoch_s = 25 * 0.0202
    assert persistent.gain == pytest.approx((epoch_s + 5 / 6 * 0.6) / epoch_s - 1, rel=0.1)  # the first start remains


def test_threads_that_crowd_the_cores_are_counted():
    processes = (
        ProcessLoad(cpu=0.5, queue=0.4),
        *(ProcessLoad(loader=0, worker=worker, cpu=0.9, thread_cpu=0.3, memory_bytes=100 * MB) for worker in range(4)),
    )
    system = {"processes": processes, "memory_free_bytes": 1 << 30}
    run = TorchRun(cores=2, workers=4, cpu_s=0.012, step_s=0.02, system=system)
    context = observed_context(diagnose_run(run.recording()).loaders[0])
    assert context.threads_per_worker == pytest.approx(3)
    assert context.single_thread_remedy is not None
    assert context.worker_bytes == 100 * MB
    assert context.free_bytes == (1 << 30) + 400 * MB


def test_the_need_is_checked_against_the_memory_that_was_free_during_the_run():
    worker = ProcessLoad(loader=0, worker=0, cpu=0.9, memory_bytes=100 * MB)
    system = {"processes": (ProcessLoad(cpu=0.1), worker), "memory_free_bytes": 2000 * MB}
    run = TorchRun(workers=1, cpu_s=0.16, step_s=0.01, system=system)
    tight, unknown = (plan_for_recording(run.recording(), batch_bytes=size) for size in (100 * MB, None))
    assert tight.memory_bytes <= 1100 * MB
    assert tight.dataloader["num_workers"] < unknown.dataloader["num_workers"]
    assert unknown.memory_bytes is None
    assert any("Memory is not checked" in note for note in unknown.notes)


def test_a_plan_fits_into_the_shared_memory():
    worker = ProcessLoad(loader=0, worker=0, cpu=0.9, memory_bytes=100 * MB)
    system = {"processes": (ProcessLoad(cpu=0.1), worker), "memory_free_bytes": 64_000 * MB}
    recording = TorchRun(workers=1, cpu_s=0.16, step_s=0.01, system=system).recording()
    container = structs.replace(recording.run, machine=structs.replace(recording.run.machine, shared_bytes=64 * MB))
    in_container, outside = (
        plan_for_recording(variant, batch_bytes=10 * MB) for variant in (replace(recording, run=container), recording)
    )
    workers, prefetch = in_container.dataloader["num_workers"], in_container.dataloader["prefetch_factor"]
    assert (workers * prefetch + 1) * 10 * MB <= 64 * MB
    assert workers < outside.dataloader["num_workers"]


def test_a_requested_value_that_is_not_in_force_is_noted():
    recording = TorchRun().recording()
    recording.loaders[0].settings["num_workers"] = LoaderSetting(requested=32, in_force=4)
    assert any(
        "num_workers=32 was requested, but 4 is in force" in note for note in plan_for_recording(recording).notes
    )


def test_a_pinned_setting_stays_and_is_noted():
    found = plan(TorchRun(workers=1, cpu_s=0.05, step_s=0.01), pinned={"num_workers"})
    assert found.dataloader["num_workers"] == 1
    assert any("pinned" in note for note in found.notes)


# -- incomplete recordings -----------------------------------------------------------------------------------------


def test_a_recording_without_steps_gets_no_changes():
    found = plan_for_recording(Recording(run=RunLine(), loaders={}))
    assert found.changes == ()
    assert "0 steps are too few" in found.notes[-1]


def test_too_few_steps_get_no_changes():
    found = plan(TorchRun(count=5))
    assert found.changes == ()
    assert "too few" in found.notes[-1]
    assert found.dataloader == {}


def test_without_fetches_no_number_of_workers_is_proposed():
    recording = TorchRun(workers=1, cpu_s=0.05, step_s=0.01).recording()
    found = plan_for_recording(replace(recording, fetches=()))
    assert change(found, "num_workers") is None
    assert found.samples_s > 0
    assert found.limits[0].name == "step"
    assert any("fetches were not recorded" in note for note in found.notes)


@pytest.mark.parametrize(
    ("loader_type", "settings", "expected_note"),
    [
        ("penstock", {}, "itself while it runs"),
        ("penstock", {"prefetch_factor": LoaderSetting(in_force=2)}, "a penstock.DataLoader: penstock.tune measures"),
        ("iterable", {}, "not a torch DataLoader"),
    ],
)
def test_other_loaders_get_no_dataloader_settings(loader_type, settings, expected_note):
    recording = TorchRun().recording()
    loader = LoaderLine(loader=0, settings=settings, batches=recording.loaders[0].batches, type=loader_type)
    found = plan_for_recording(replace(recording, loaders={0: loader}))
    assert found.dataloader == {}
    assert any(expected_note in note for note in found.notes)


def test_a_loop_without_a_step_has_no_largest_gain():
    found = plan(TorchRun(step_s=0.0, cpu_s=0.01))
    assert found.most_gain is None
    assert any("does nothing" in note for note in found.notes)


def test_an_unknown_profile_is_refused():
    with pytest.raises(SettingError, match="profile"):
        plan_for_recording(Recording(run=RunLine(), loaders={}), profile="fast")


# -- real runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["plain", "item", "pageable"])
def test_recordings_of_real_trainings_give_a_plan(run):
    recording = load(DATA_FILES / f"resnet50_{run}.jsonl.gz")
    found = plan_for_recording(recording)
    assert isinstance(found, Plan)
    assert found.samples_s > 0
    assert found.limits
    assert found.planned_samples_s >= 0.99 * found.samples_s
    assert all(change.reason for change in found.changes)


def test_the_gain_of_pinning_agrees_with_a_real_training_with_pinned_memory():
    recording = load(DATA_FILES / "resnet50_pageable.jsonl.gz")
    machine = msgspec.structs.replace(recording.run.machine, gpus=(Gpu(name="H200"),))
    pin = change(plan_for_recording(replace(recording, run=RunLine(machine=machine))), "pin_memory")
    assert pin.then is True
    plain = gather(load(DATA_FILES / "resnet50_plain.jsonl.gz"))[0]  # the same training with pinned memory
    pageable = gather(recording)[0]
    assert pin.gain == pytest.approx(pageable.loop.cycle_s / plain.loop.cycle_s - 1, abs=0.06)


def test_planning_is_deterministic():
    recording = TorchRun(workers=2, cpu_s=np.resize([0.05, 0.09], 200), step_s=0.01).recording()
    assert plan_for_recording(recording) == plan_for_recording(recording)
