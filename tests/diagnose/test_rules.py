"""The rules on simulated runs: each names the cause that its run has, and none names one for a healthy run."""

import numpy as np
import pytest
from tests.support.simulated_recordings import SAMPLES, TorchRun

from penstock.diagnose.rules import all_rules
from penstock.diagnose.verdict import diagnose
from penstock.recording.format import EventLine

STRAGGLING = np.where(np.random.default_rng(7).random(400) < 0.04, 0.4, 0.02)
"""Seconds of each batch: 4% of them take 20 times as long as the others."""
MB = 1 << 20


def thrashing(readers):
    """Return the throughput of a disk on which two readers together get less than one alone."""
    return 1.0 if readers == 1 else 1 / readers**0.7


RUNS = {
    "no_overlap": TorchRun(workers=0, cpu_s=0.02),
    "decode_bound": TorchRun(cores=2, cpu_s=0.2, step_s=0.01),
    "too_few_workers": TorchRun(workers=1, cpu_s=0.05, step_s=0.01),
    "noisy_neighbour": TorchRun(
        cores=2, workers=2, cpu_s=0.03, step_s=0.01, competitors=2.0, main={"queue": 0.3, "cpu": 0.5}
    ),
    "cpu_quota": TorchRun(
        cores=1,
        workers=2,
        cpu_s=0.03,
        step_s=0.01,
        system={"throttled": 0.5, "machine": {"cores": 8, "quota_cores": 1.0}},
        main={"queue": 0.4},
    ),
    "cpu_oversubscribed": TorchRun(cores=2, workers=8, cpu_s=0.012, step_s=0.02, main={"queue": 0.4, "cpu": 0.5}),
    "lagging_worker": TorchRun(workers=4, lag={2: 0.3}, step_s=0.01),
    "straggler_samples": TorchRun(workers=4, count=400, cpu_s=STRAGGLING, step_s=0.01, cores=16),
    "tail_latency": TorchRun(
        workers=4, count=400, cpu_s=0.005, latency_s=STRAGGLING - 0.015, step_s=0.01, cores=16, states={"read": 60}
    ),
    "slow_collate": TorchRun(workers=2, cpu_s=0.08, step_s=0.02, collate=0.7, cores=2),
    "lock_contention": TorchRun(workers=4, cpu_s=0.01, latency_s=0.15, states={"lock": 80}),
    "latency_bound": TorchRun(
        workers=4, cpu_s=0.01, latency_s=0.2, states={"network": 80}, fetch={"read_bytes": MB, "reads": 16}
    ),
    "storage_bandwidth": TorchRun(
        workers=4,
        cpu_s=0.005,
        io_s=0.05,
        states={"read": 85},
        fetch={"read_bytes": 8 * MB, "reads": 16},
        after={"sequential_alone": 160 * MB, "sequential_together": 165 * MB},
    ),
    "random_access": TorchRun(
        workers=4,
        cpu_s=0.005,
        io_s=0.05,
        states={"read": 85},
        fetch={"read_bytes": 65536, "reads": 64},
        after={"random_alone": 1 * MB, "random_together": 1.3 * MB},
    ),
    "reader_thrash": TorchRun(
        workers=4,
        cpu_s=0.005,
        io_s=0.03,
        storage=thrashing,
        after={
            "sequential_alone": 260 * MB,
            "sequential_together": 100 * MB,
            "random_alone": 90 * MB,
            "random_together": 30 * MB,
        },
        states={"read": 85},
        fetch={"read_bytes": 8 * MB, "reads": 16},
    ),
    "small_files": TorchRun(
        workers=4,
        cpu_s=0.01,
        latency_s=0.2,
        states={"open": 60, "read": 20},
        fetch={"opens": SAMPLES, "read_bytes": 65536, "reads": 32},
    ),
    "memory_pressure": TorchRun(system={"pressure": {"memory": 0.4}, "swapped_in_bytes_s": 5e7}),
    "ipc_copy": TorchRun(receive_s=0.01),
    "sampler_overhead": TorchRun(phases={"sampler": 0.006}, receive_s=0.0065),
    "worker_startup": TorchRun(epochs=6, count=25, startup_s=0.6, settings={"persistent_workers": False}),
    "gc_pauses": TorchRun(events=tuple(EventLine(what="gc", at_s=float(second), seconds=0.4) for second in range(3))),
    "host_sync": TorchRun(phases={"forward": 0.004, "backward": 0.004, "sync": 0.012}),
    "pageable_copy": TorchRun(phases={"forward": 0.012, "h2d": 0.008}, settings={"pin_memory": False}),
    "logging_overhead": TorchRun(phases={"forward": 0.012, "log": 0.008}),
    "main_process_python": TorchRun(phases={"forward": 0.004, "backward": 0.004}),
}


@pytest.mark.parametrize("rule", RUNS)
def test_the_cause_of_a_run_is_its_first_finding(rule):
    found = diagnose(RUNS[rule].recording())
    assert found.verdict == "findings"
    assert found.findings[0].rule == rule, [(each.rule, each.gain, each.confidence) for each in found.findings]
    assert found.findings[0].gain_low <= found.findings[0].gain <= found.findings[0].gain_high


HEALTHY = {
    "a loop that finds its batches ready": TorchRun(),
    "a step that takes longest": TorchRun(step_s=0.2, cpu_s=0.1),
    "no loading at all": TorchRun(cpu_s=0.0, receive_s=0.0),
    "evaluation in between": TorchRun(phases={"evaluation": 0.001}),
    "few cores, all in use, but batches are ready": TorchRun(
        cores=2, workers=2, cpu_s=0.015, step_s=0.02, main={"cpu": 0.5}
    ),
}


@pytest.mark.parametrize("run", HEALTHY)
def test_a_healthy_run_has_no_finding(run):
    found = diagnose(HEALTHY[run].recording())
    assert found.verdict == "healthy"
    assert not found.findings


def test_every_rule_is_named_like_its_file_and_has_a_docstring_of_several_paragraphs():
    for name, rule in all_rules().items():
        page = __import__(rule.__module__, fromlist=["_"]).__doc__
        assert rule.__module__.endswith(name)
        assert len(page.split("\n\n")) >= 2


def test_waiting_of_unknown_cause_gets_an_experiment():
    recording = TorchRun(workers=4, cpu_s=0.001, latency_s=0.2).recording()
    found = diagnose(recording)
    assert found.verdict in ("undetermined", "findings")
    assert found.experiment or found.findings[0].experiment


def test_too_few_steps_are_undetermined():
    found = diagnose(TorchRun(count=5).recording())
    assert found.verdict == "undetermined"
    assert "too few" in found.sentence
