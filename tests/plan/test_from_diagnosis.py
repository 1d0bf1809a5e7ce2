"""Plans for runs whose cause is known, made by the simulator, and for real ones."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec import structs
from tests.support.made_recordings import SAMPLES, Made
from tests.support.paths import DATA_FILES

from penstock.core.plan import Plan
from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import diagnose_run
from penstock.errors import SettingError
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.plan.predict import predict
from penstock.plan.scenario_from_evidence import UNDETERMINED, observed_context, observed_settings, observed_workload
from penstock.recording.format import Gpu, LoaderLine, LoaderSetting, ProcessLoad, RunLine
from penstock.recording.reader import Recording, load

DATA = DATA_FILES
MB = 1 << 20
READING = {"states": {"read": 85}, "fetch": {"read_bytes": 8 * MB, "reads": 16}}
SHARED = {"sequential_alone": 160 * MB, "sequential_together": 165 * MB}
LESS = {
    "sequential_alone": 260 * MB,
    "sequential_together": 100 * MB,
    "random_alone": 90 * MB,
    "random_together": 30 * MB,
}
"""What the storage gave to one reader and to all."""


def plan_for_recording(recording, profile="balanced", **options):
    return plan_from_diagnosis(diagnose_run(recording), profile, **options)


def thrashing(readers):
    return 1.0 if readers == 1 else 1 / readers**0.7


def plan(made, **how):
    return plan_for_recording(made.recording(), **how)


def change(found, name):
    return next((each for each in found.changes if each.name == name), None)


# -- numbers -------------------------------------------------------------------------------------------------------


def test_the_measured_rate_is_samples_over_the_cycle():
    found = plan(Made(step_s=0.02, receive_s=0.0, cpu_s=0.001))
    assert found.samples_s == pytest.approx(SAMPLES / 0.02, rel=0.02)
    assert found.most_gain == pytest.approx(0.0, abs=0.02)
    assert found.source == "recording"


def test_a_healthy_run_is_left_alone():
    found = plan(Made())
    assert [each for each in found.changes if each.scope == "dataloader"] == []
    assert found.planned_samples_s == pytest.approx(found.samples_s, rel=0.02)
    assert found.dataloader["num_workers"] == 4


def test_too_few_workers_get_more_and_the_plan_says_what_that_gives():
    found = plan(Made(workers=1, cpu_s=0.05, step_s=0.01))
    more = change(found, "num_workers")
    assert 5 <= more.then <= 8
    assert found.planned_samples_s == pytest.approx(found.samples_s * 5, rel=0.15)
    assert found.planned_samples_s <= found.samples_s * (1 + found.most_gain) * 1.03
    assert found.limits[0].name == "workers"
    assert found.dataloader["num_workers"] == more.then


def test_no_workers_at_all():
    found = plan(Made(workers=0, cpu_s=0.02))
    assert change(found, "num_workers").now == 0
    assert found.limits[0].name == "main"
    assert found.planned_samples_s == pytest.approx(2 * found.samples_s, rel=0.1)


def test_too_many_workers_for_the_cores_are_no_gain_and_not_proposed():
    found = plan(Made(cores=2, cpu_s=0.2, step_s=0.01))
    assert change(found, "num_workers") is None
    assert found.limits[0].name == "cpu"


@pytest.mark.parametrize("profile", ["balanced", "speed", "memory"])
def test_changes_come_with_the_largest_gain_first(profile):
    found = plan(Made(workers=1, cpu_s=0.05, step_s=0.01, passes=4, count=40, startup_s=2.0), profile=profile)
    gains = [each.gain for each in found.changes if each.gain is not None]
    assert gains == sorted(gains, reverse=True)
    assert found.profile == profile


# -- causes that look alike ----------------------------------------------------------------------------------------


def test_latency_takes_more_workers():
    slow = Made(workers=4, cpu_s=0.01, latency_s=0.2, states={"network": 80}, fetch={"read_bytes": MB, "reads": 16})
    found = plan(slow)
    assert change(found, "num_workers").then > 8
    assert found.loader["reading"]["num_readers"] > 4


def test_a_full_device_does_not():
    found = plan(Made(workers=4, cpu_s=0.005, io_s=0.05, after=SHARED, **READING))
    assert change(found, "num_workers") is None
    assert found.limits[0].name == "bandwidth"
    assert found.loader["reading"]["num_readers"] == 2


def test_a_thrashing_disk_takes_fewer():
    found = plan(Made(workers=4, cpu_s=0.005, io_s=0.03, storage=thrashing, after=LESS, **READING))
    assert change(found, "num_workers").then in (1, 2)
    assert change(found, "num_workers").gain > 0.3
    assert found.loader["reading"]["num_readers"] == 1


def test_waiting_that_nobody_could_sort_promises_nothing_and_names_the_experiment():
    found = plan(Made(workers=4, cpu_s=0.005, latency_s=0.2, **READING))
    assert change(found, "num_workers") is None
    assert UNDETERMINED in found.notes


def test_a_lock_is_not_cured_by_more_workers():
    found = plan(Made(workers=4, cpu_s=0.01, latency_s=0.15, states={"lock": 80}))
    assert change(found, "num_workers") is None


def test_a_lagging_worker_is_waited_for_only_in_order():
    found = plan(Made(workers=4, lag={2: 0.3}, step_s=0.01, settings={"in_order": True}), pinned={"num_workers"})
    assert change(found, "in_order").then is False
    assert found.dataloader["in_order"] is False


def test_what_the_sampler_takes_is_not_saved_by_going_without_workers():
    found = plan(Made(phases={"sampler": 0.006}, receive_s=0.0065, cpu_s=0.004))
    assert change(found, "num_workers") is None
    assert found.planned_samples_s == pytest.approx(found.samples_s, rel=0.01)


def test_rates_count_the_start_of_workers_and_say_so():
    found = plan(Made(passes=6, count=25, startup_s=0.6, settings={"persistent_workers": False}))
    assert found.samples_s == pytest.approx(25 * SAMPLES / (25 * 0.0202 + 0.6), rel=0.05)
    assert found.planned_samples_s > 1.5 * found.samples_s
    assert any("Rates are those of whole epochs with the start of workers" in note for note in found.notes)


def test_a_dataset_that_deals_to_few_workers_gets_no_more():
    recording = Made(workers=4, cpu_s=0.1, step_s=0.01, dataset_size=None).recording()
    fetches = tuple(msgspec.structs.replace(fetch, worker=fetch.batch % 2) for fetch in recording.fetches)
    found = plan_for_recording(replace(recording, fetches=fetches))
    assert change(found, "num_workers") is None
    assert any("divides its samples itself, between 2 of 4" in note for note in found.notes)


def test_a_model_of_a_shared_device_gives_the_rate_that_was_measured():
    made = Made(workers=4, cpu_s=0.005, io_s=0.05, after=SHARED, **READING)
    evidence = gather(made.recording())[0]
    workload, notes = observed_workload(evidence)
    assert notes == ()
    assert predict(workload).batches_s == pytest.approx(1 / evidence.loop.cycle_s, rel=0.1)


# -- settings, place -----------------------------------------------------------------------------------------------


def test_settings_are_those_in_force():
    given = {"pin_memory": True, "persistent_workers": True, "in_order": False, "multiprocessing_context": "spawn"}
    found = observed_settings(gather(Made(settings=given).recording())[0])
    assert (found.num_workers, found.prefetch_factor) == (4, 2)
    assert (found.pin_memory, found.persistent_workers, found.in_order) == (True, True, False)
    assert found.multiprocessing_context == "spawn"


def test_short_epochs_want_workers_that_stay():
    found = plan(Made(passes=6, count=25, startup_s=0.6, settings={"persistent_workers": False}))
    stay = change(found, "persistent_workers")
    epoch_s = 25 * 0.0202
    assert stay.gain == pytest.approx((epoch_s + 0.6) / (epoch_s + 0.6 / 6) - 1, rel=0.1)  # paid once, not six times


def test_threads_that_crowd_the_cores_are_seen():
    processes = (
        ProcessLoad(cpu=0.5, queue=0.4),
        *(ProcessLoad(loader=0, worker=worker, cpu=0.9, thread_cpu=0.3, memory_bytes=100 * MB) for worker in range(4)),
    )
    looks = {"processes": processes, "memory_free_bytes": 1 << 30}
    made = Made(cores=2, workers=4, cpu_s=0.012, step_s=0.02, system=looks)
    place = observed_context(diagnose_run(made.recording()).loaders[0])
    assert place.threads_per_worker == pytest.approx(3)
    assert place.single_thread_remedy is not None
    assert place.worker_bytes == 100 * MB
    assert place.free_bytes == (1 << 30) + 400 * MB


def test_memory_is_checked_against_what_was_free_while_it_ran():
    worker = ProcessLoad(loader=0, worker=0, cpu=0.9, memory_bytes=100 * MB)
    looks = {"processes": (ProcessLoad(cpu=0.1), worker), "memory_free_bytes": 2000 * MB}
    made = Made(workers=1, cpu_s=0.16, step_s=0.01, system=looks)
    tight, unknown = (plan_for_recording(made.recording(), batch_bytes=size) for size in (100 * MB, None))
    assert tight.memory_bytes <= 1100 * MB
    assert tight.dataloader["num_workers"] < unknown.dataloader["num_workers"]
    assert unknown.memory_bytes is None
    assert any("Memory is not checked" in note for note in unknown.notes)


def test_more_is_not_proposed_than_shared_memory_holds():
    worker = ProcessLoad(loader=0, worker=0, cpu=0.9, memory_bytes=100 * MB)
    looks = {"processes": (ProcessLoad(cpu=0.1), worker), "memory_free_bytes": 64_000 * MB}
    recording = Made(workers=1, cpu_s=0.16, step_s=0.01, system=looks).recording()
    container = structs.replace(recording.run, machine=structs.replace(recording.run.machine, shared_bytes=64 * MB))
    tight, roomy = (
        plan_for_recording(each, batch_bytes=10 * MB) for each in (replace(recording, run=container), recording)
    )
    assert (tight.dataloader["num_workers"] * tight.dataloader["prefetch_factor"] + 1) * 10 * MB <= 64 * MB
    assert tight.dataloader["num_workers"] < roomy.dataloader["num_workers"]


def test_what_was_changed_on_the_way_is_told():
    recording = Made().recording()
    recording.loaders[0].settings["num_workers"] = LoaderSetting(requested=32, in_force=4)
    assert any(
        "num_workers=32 was requested, but 4 is in force" in note for note in plan_for_recording(recording).notes
    )


def test_a_pinned_setting_is_told_and_stays():
    found = plan(Made(workers=1, cpu_s=0.05, step_s=0.01), pinned={"num_workers"})
    assert found.dataloader["num_workers"] == 1
    assert any("pinned" in note for note in found.notes)


# -- runs with something missing -----------------------------------------------------------------------------------


def test_nothing_iterated_over():
    found = plan_for_recording(Recording(run=RunLine(), loaders={}))
    assert found.changes == ()
    assert "0 steps are too few" in found.notes[-1]


def test_few_steps_are_too_few():
    found = plan(Made(count=5))
    assert found.changes == ()
    assert "too few" in found.notes[-1]
    assert found.dataloader == {}


def test_workers_that_nobody_saw():
    recording = Made(workers=1, cpu_s=0.05, step_s=0.01).recording()
    found = plan_for_recording(replace(recording, fetches=()))
    assert change(found, "num_workers") is None
    assert found.samples_s > 0
    assert found.limits[0].name == "step"
    assert any("fetches were not recorded" in note for note in found.notes)


@pytest.mark.parametrize(
    ("kind", "words"), [("penstock", "itself while it runs"), ("iterable", "not a torch DataLoader")]
)
def test_other_loaders_have_no_such_settings(kind, words):
    recording = Made().recording()
    told = {**{name: getattr(recording.loaders[0], name) for name in ("loader", "settings", "batches")}, "type": kind}
    found = plan_for_recording(replace(recording, loaders={0: LoaderLine(**told)}))
    assert found.dataloader == {}
    assert any(words in note for note in found.notes)


def test_a_loop_that_does_nothing_with_its_batches():
    found = plan(Made(step_s=0.0, cpu_s=0.01))
    assert found.most_gain is None
    assert any("does nothing" in note for note in found.notes)


def test_an_unknown_profile_is_refused_before_anything_else():
    with pytest.raises(SettingError, match="profile"):
        plan_for_recording(Recording(run=RunLine(), loaders={}), profile="fast")


# -- real runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["plain", "item", "pageable"])
def test_real_trainings_can_be_planned(run):
    recording = load(DATA / f"resnet50_{run}.jsonl.gz")
    found = plan_for_recording(recording)
    assert isinstance(found, Plan)
    assert found.samples_s > 0
    assert found.limits
    assert found.planned_samples_s >= 0.99 * found.samples_s
    assert all(each.reason for each in found.changes)


def test_a_real_training_that_copies_from_pageable_memory_should_pin_it():
    recording = load(DATA / "resnet50_pageable.jsonl.gz")
    machine = msgspec.structs.replace(recording.run.machine, gpus=(Gpu(name="H200"),))
    pin = change(plan_for_recording(replace(recording, run=RunLine(machine=machine))), "pin_memory")
    assert pin.then is True
    plain = gather(load(DATA / "resnet50_plain.jsonl.gz"))[0]  # the same training with pinned memory
    pageable = gather(recording)[0]
    assert pin.gain == pytest.approx(pageable.loop.cycle_s / plain.loop.cycle_s - 1, abs=0.06)


def test_a_plan_is_the_same_each_time():
    made = Made(workers=2, cpu_s=np.resize([0.05, 0.09], 200), step_s=0.01).recording()
    assert plan_for_recording(made) == plan_for_recording(made)
