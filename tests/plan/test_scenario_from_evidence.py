"""What a recording says about a loader's place, where it says little or much."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.made_recordings import Made

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import LoaderDiagnosis
from penstock.plan.predict import predict
from penstock.plan.scenario_from_evidence import observed_context, observed_workload
from penstock.plan.storage_model import StoredWorkload


def seen(made):
    return gather(made.recording())[0]


def test_a_recording_without_looks_leaves_memory_unknown():
    evidence = gather(replace(Made().recording(), system=()))[0]
    place = observed_context(LoaderDiagnosis(evidence))
    assert place.free_bytes is None
    assert place.worker_bytes is None
    assert (place.threads_per_worker, place.single_thread_remedy) == (1.0, None)


@pytest.mark.parametrize(
    ("torch", "known"), [("2.13.0+cpu", True), ("2.6.1", True), ("2.5.1", False), ("nightly", False), (None, False)]
)
def test_whether_order_can_be_given_up_is_read_off_the_version(torch, known):
    recording = Made().recording()
    run = msgspec.structs.replace(recording.run, machine=msgspec.structs.replace(recording.run.machine, torch=torch))
    assert observed_context(LoaderDiagnosis(gather(replace(recording, run=run))[0])).has_in_order is known


def test_a_batch_is_at_least_what_was_read_for_it_unless_somebody_knows_better():
    evidence = seen(Made(fetch={"read_bytes": 1000}))
    assert observed_context(LoaderDiagnosis(evidence)).batch_bytes == 1000
    assert observed_context(LoaderDiagnosis(evidence), batch_bytes=5000).batch_bytes == 5000
    assert observed_context(LoaderDiagnosis(seen(Made()))).batch_bytes is None


def test_a_start_is_read_off_later_passes():
    evidence = seen(Made(passes=3, count=30, startup_s=2.0, workers=4))
    assert observed_context(LoaderDiagnosis(evidence)).worker_start.seconds(4) == pytest.approx(2.0, rel=0.05)
    assert observed_context(LoaderDiagnosis(evidence)).epochs == 3
    assert observed_context(LoaderDiagnosis(evidence)).epoch_batches == 30


def test_late_answers_hold_up_nobody_but_their_own_batch():
    latency_s = [0.1] * 190 + [2.0] * 10
    evidence = seen(Made(workers=4, cpu_s=0.001, latency_s=latency_s, states={"read": 90}))
    workload, _ = observed_workload(evidence)
    assert isinstance(workload, StoredWorkload)
    assert workload.latency_s.max() == pytest.approx(1.8, rel=0.01)  # all but twice the usual wait
    assert workload.io_s.max() == pytest.approx(2 * workload.io_s.min())


@pytest.mark.parametrize("recorded", [2, 4])
def test_a_head_between_two_readers_is_as_slow_as_between_many(recorded):
    look = {"sequential_alone": 120e6, "sequential_together": 12e6}
    reading = {"states": {"read": 90}, "fetch": {"read_bytes": 1 << 19, "reads": 8}}
    made = Made(workers=recorded, cpu_s=0.001, io_s=0.01, storage=lambda _readers: 0.1, after=look, **reading)
    evidence = seen(made)
    workload, _ = observed_workload(evidence)
    measured = 1 / evidence.loop.cycle_s
    for workers in (2, 4, 8):
        assert predict(workload.replace(workers=workers)).batches_s == pytest.approx(measured, rel=0.1)
    assert workload.reads.bytes_s(1) == pytest.approx(10 * measured, rel=0.05)


def test_batches_that_find_their_data_read_ahead_wait_for_the_device_with_the_others():
    evidence = seen(
        Made(
            workers=2,
            cpu_s=0.001,
            io_s=np.resize([0.0, 0.0, 0.0, 0.12], 200),
            storage=lambda _readers: 1.0,
            after={"sequential_alone": 30e6, "sequential_together": 30e6},
            states={"read": 90},
            fetch={"read_bytes": 1 << 20, "reads": 8},
        )
    )
    workload, _ = observed_workload(evidence)
    measured = 1 / evidence.loop.cycle_s
    for workers, prefetch in ((1, 8), (4, 2)):  # one worker needs a stock for the loop to eat while it waits
        changed = workload.replace(workers=workers, prefetch=prefetch)
        assert predict(changed).batches_s == pytest.approx(measured, rel=0.1)


def test_a_device_that_reads_ahead_gives_its_rate_to_however_few_ask():
    lumps = [8 << 20 if number % 8 == 7 else 0 for number in range(200)]
    made = Made(
        workers=2,
        cpu_s=0.001,
        io_s=np.resize([0.0, 0.0, 0.0, 0.12], 200),
        storage=lambda _readers: 1.0,
        after={"sequential_alone": 30e6, "sequential_together": 30e6},
        states={"read": 90},
        fetch={"read_bytes": 1 << 20, "reads": 8, "device_bytes": 0},
    )
    recording = made.recording()
    fetches = [msgspec.structs.replace(f, device_bytes=lump) for f, lump in zip(recording.fetches, lumps, strict=True)]
    evidence = gather(replace(recording, fetches=tuple(fetches)))[0]
    workload, _ = observed_workload(evidence)
    assert workload.reads.ahead
    for workers in (0, 1, 4):
        found = predict(workload.replace(workers=workers))
        assert found.batches_s == pytest.approx(1 / evidence.loop.cycle_s, rel=0.1)
        assert found.binding.name == "bandwidth"


def test_a_device_asked_for_each_batch_as_it_is_wanted_does_not_read_ahead():
    made = Made(
        workers=2,
        cpu_s=0.001,
        io_s=0.03,
        storage=lambda _readers: 1.0,
        after={"sequential_alone": 30e6, "sequential_together": 30e6},
        states={"read": 90},
        fetch={"read_bytes": 1 << 20, "reads": 8, "device_bytes": 1 << 20},
    )
    workload, _ = observed_workload(seen(made))
    assert not workload.reads.ahead
