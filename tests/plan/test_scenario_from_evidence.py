"""The workload and the context that are derived from a recording, complete or with parts missing."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.simulated_recordings import TorchRun

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import LoaderDiagnosis
from penstock.plan.predict import predict
from penstock.plan.scenario_from_evidence import observed_context, observed_workload
from penstock.plan.storage_model import StoredWorkload


def evidence_of(run):
    return gather(run.recording())[0]


def test_memory_is_unknown_if_the_machine_was_not_sampled():
    evidence = gather(replace(TorchRun().recording(), system=()))[0]
    context = observed_context(LoaderDiagnosis(evidence))
    assert context.free_bytes is None
    assert context.worker_bytes is None
    assert (context.threads_per_worker, context.single_thread_remedy) == (1.0, None)


@pytest.mark.parametrize(
    ("version", "has_in_order"),
    [("2.13.0+cpu", True), ("2.6.1", True), ("2.5.1", False), ("nightly", False), (None, False)],
)
def test_torch_has_in_order_from_version_2_6_on(version, has_in_order):
    recording = TorchRun().recording()
    run = msgspec.structs.replace(recording.run, machine=msgspec.structs.replace(recording.run.machine, torch=version))
    assert observed_context(LoaderDiagnosis(gather(replace(recording, run=run))[0])).has_in_order is has_in_order


def test_the_size_of_a_batch_is_that_given_or_else_the_bytes_read_for_it():
    evidence = evidence_of(TorchRun(fetch={"read_bytes": 1000}))
    assert observed_context(LoaderDiagnosis(evidence)).batch_bytes == 1000
    assert observed_context(LoaderDiagnosis(evidence), batch_bytes=5000).batch_bytes == 5000
    assert observed_context(LoaderDiagnosis(evidence_of(TorchRun()))).batch_bytes is None


def test_the_cost_of_starting_workers_comes_from_later_epochs():
    evidence = evidence_of(TorchRun(epochs=3, count=30, startup_s=2.0, workers=4))
    assert observed_context(LoaderDiagnosis(evidence)).worker_start.seconds(4) == pytest.approx(2.0, rel=0.05)
    assert observed_context(LoaderDiagnosis(evidence)).epochs == 3
    assert observed_context(LoaderDiagnosis(evidence)).epoch_batches == 30


def test_unusually_long_reads_delay_only_their_own_batch():
    latency_s = [0.1] * 190 + [2.0] * 10
    evidence = evidence_of(TorchRun(workers=4, cpu_s=0.001, latency_s=latency_s, states={"read": 90}))
    workload, _ = observed_workload(evidence)
    assert isinstance(workload, StoredWorkload)
    assert workload.latency_s.max() == pytest.approx(1.8, rel=0.01)  # the wait beyond twice the usual one
    assert workload.io_s.max() == pytest.approx(2 * workload.io_s.min())


@pytest.mark.parametrize("recorded_workers", [2, 4])
def test_a_disk_with_one_head_is_as_slow_for_two_readers_as_for_many(recorded_workers):
    rates = {"sequential_alone": 120e6, "sequential_together": 12e6}
    reading = {"states": {"read": 90}, "fetch": {"read_bytes": 1 << 19, "reads": 8}}
    run = TorchRun(
        workers=recorded_workers, cpu_s=0.001, io_s=0.01, storage=lambda _readers: 0.1, after=rates, **reading
    )
    evidence = evidence_of(run)
    workload, _ = observed_workload(evidence)
    measured = 1 / evidence.loop.cycle_s
    for workers in (2, 4, 8):
        assert predict(workload.replace(workers=workers)).batches_s == pytest.approx(measured, rel=0.1)
    assert workload.reads.bytes_s(1) == pytest.approx(10 * measured, rel=0.05)


def test_batches_that_find_their_bytes_in_memory_count_with_those_that_wait_for_the_device():
    evidence = evidence_of(
        TorchRun(
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
    for workers, prefetch in ((1, 8), (4, 2)):  # one worker must prefetch enough batches for the time it waits
        changed = workload.replace(workers=workers, prefetch=prefetch)
        assert predict(changed).batches_s == pytest.approx(measured, rel=0.1)


def test_a_device_with_read_ahead_gives_its_full_rate_to_any_number_of_workers():
    device_bytes = [8 << 20 if batch % 8 == 7 else 0 for batch in range(200)]
    run = TorchRun(
        workers=2,
        cpu_s=0.001,
        io_s=np.resize([0.0, 0.0, 0.0, 0.12], 200),
        storage=lambda _readers: 1.0,
        after={"sequential_alone": 30e6, "sequential_together": 30e6},
        states={"read": 90},
        fetch={"read_bytes": 1 << 20, "reads": 8, "device_bytes": 0},
    )
    recording = run.recording()
    fetches = [
        msgspec.structs.replace(fetch, device_bytes=size)
        for fetch, size in zip(recording.fetches, device_bytes, strict=True)
    ]
    evidence = gather(replace(recording, fetches=tuple(fetches)))[0]
    workload, _ = observed_workload(evidence)
    assert workload.reads.ahead
    for workers in (0, 1, 4):
        prediction = predict(workload.replace(workers=workers))
        assert prediction.batches_s == pytest.approx(1 / evidence.loop.cycle_s, rel=0.1)
        assert prediction.binding.name == "bandwidth"


def test_a_device_that_reads_for_every_batch_does_not_read_ahead():
    run = TorchRun(
        workers=2,
        cpu_s=0.001,
        io_s=0.03,
        storage=lambda _readers: 1.0,
        after={"sequential_alone": 30e6, "sequential_together": 30e6},
        states={"read": 90},
        fetch={"read_bytes": 1 << 20, "reads": 8, "device_bytes": 1 << 20},
    )
    workload, _ = observed_workload(evidence_of(run))
    assert not workload.reads.ahead
