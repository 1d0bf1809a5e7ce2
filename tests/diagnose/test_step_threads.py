"""The step's own threads and the workers want the same cores: workers gain less where a step fills the cores."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.simulated_recordings import TorchRun

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import diagnose_run
from penstock.model.simulation_data import WorkerPool, make_batch_costs
from penstock.model.simulator import simulate
from penstock.model.workload import Workload
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.plan.predict import predict


def alternating(other_threads):
    """Return a run on 2 cores that decodes 30 ms and computes 30 ms, alone or with another thread of torch."""
    recording = TorchRun(workers=0, cores=2, cpu_s=0.03, step_s=0.03).recording()
    main = {"cpu": 1.0 + 0.5 * other_threads, "thread_cpu": 1.0}
    system = [
        msgspec.structs.replace(line, processes=(msgspec.structs.replace(line.processes[0], **main),))
        for line in recording.system
    ]
    return replace(recording, system=tuple(system))


@pytest.mark.parametrize(("other_threads", "cycle_ms"), [(0, 30), (1, 45)])
def test_workers_gain_what_the_threads_of_the_step_leave(other_threads, cycle_ms):
    """Per batch there are 30 ms of decoding, and 30 ms of computing on one core or on two."""
    recording = alternating(other_threads)
    evidence = gather(recording)[0]
    assert evidence.contention.step_threads == pytest.approx(1 + other_threads, rel=0.05)
    run = diagnose_run(recording)
    assert run.diagnosis.findings[0].rule == "no_overlap"
    ceiling = 60 / cycle_ms - 1
    assert 0.6 * ceiling < run.diagnosis.findings[0].gain < 1.1 * ceiling
    plan = plan_from_diagnosis(run)
    assert 0.6 * ceiling < plan.planned_samples_s / plan.samples_s - 1 < 1.1 * ceiling


def workload(threads):
    return Workload(
        workers=2,
        prefetch=2,
        in_order=True,
        cores=2.0,
        cpu_s=np.full(60, 0.03),
        latency_s=np.zeros(1),
        receive_s=np.zeros(1),
        step_s=np.full(60, 0.03),
        step_cpu_s=np.full(60, 0.03),
        step_threads=threads,
        worker=np.arange(60) % 2,
    )


def test_a_simulated_step_of_two_threads_takes_twice_the_cores():
    assert 1 / workload(1.0).steady_rate == pytest.approx(0.030, rel=0.25)
    assert 1 / workload(2.0).steady_rate == pytest.approx(0.045, rel=0.15)
    assert 1 / predict(workload(2.0)).batches_s >= 0.0449  # 90 ms of computing per batch on two cores


def test_a_step_of_several_threads_takes_its_own_time_if_the_cores_are_free():
    costs = make_batch_costs(8, step_s=0.03, step_cpu_s=0.03)
    run = simulate(costs, WorkerPool(1, cores=4, step_threads=3.0))
    assert run.end_s == pytest.approx(8 * 0.03)
