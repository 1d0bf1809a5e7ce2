"""Every rule on a run that has its cause: it comes first; and on healthy runs: nothing comes."""

import numpy as np
import pytest
from tests.support.made_recordings import SAMPLES, Made

from penstock.diagnose.rules import all_rules
from penstock.diagnose.verdict import diagnose
from penstock.recording.format import EventLine

DICE = np.random.default_rng(7)
STRAGGLING = np.where(DICE.random(400) < 0.04, 0.4, 0.02)
MB = 1 << 20


def thrashing(readers):
    """Two readers together get less than one alone."""
    return 1.0 if readers == 1 else 1 / readers**0.7


CAUSES = {
    "no_overlap": Made(workers=0, cpu_s=0.02),
    "decode_bound": Made(cores=2, cpu_s=0.2, step_s=0.01),
    "too_few_workers": Made(workers=1, cpu_s=0.05, step_s=0.01),
    "noisy_neighbour": Made(
        cores=2, workers=2, cpu_s=0.03, step_s=0.01, competitors=2.0, main={"queue": 0.3, "cpu": 0.5}
    ),
    "cpu_quota": Made(
        cores=1,
        workers=2,
        cpu_s=0.03,
        step_s=0.01,
        system={"throttled": 0.5, "machine": {"cores": 8, "quota_cores": 1.0}},
        main={"queue": 0.4},
    ),
    "cpu_oversubscribed": Made(cores=2, workers=8, cpu_s=0.012, step_s=0.02, main={"queue": 0.4, "cpu": 0.5}),
    "lagging_worker": Made(workers=4, lag={2: 0.3}, step_s=0.01),
    "straggler_samples": Made(workers=4, count=400, cpu_s=STRAGGLING, step_s=0.01, cores=16),
    "tail_latency": Made(
        workers=4, count=400, cpu_s=0.005, latency_s=STRAGGLING - 0.015, step_s=0.01, cores=16, states={"read": 60}
    ),
    "slow_collate": Made(workers=2, cpu_s=0.08, step_s=0.02, collate=0.7, cores=2),
    "lock_contention": Made(workers=4, cpu_s=0.01, latency_s=0.15, states={"lock": 80}),
    "latency_bound": Made(
        workers=4, cpu_s=0.01, latency_s=0.2, states={"network": 80}, fetch={"read_bytes": MB, "reads": 16}
    ),
    "storage_bandwidth": Made(
        workers=4,
        cpu_s=0.005,
        io_s=0.05,
        states={"read": 85},
        fetch={"read_bytes": 8 * MB, "reads": 16},
        after={"sequential_alone": 160 * MB, "sequential_together": 165 * MB},
    ),
    "random_access": Made(
        workers=4,
        cpu_s=0.005,
        io_s=0.05,
        states={"read": 85},
        fetch={"read_bytes": 65536, "reads": 64},
        after={"random_alone": 1 * MB, "random_together": 1.3 * MB},
    ),
    "reader_thrash": Made(
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
    "small_files": Made(
        workers=4,
        cpu_s=0.01,
        latency_s=0.2,
        states={"open": 60, "read": 20},
        fetch={"opens": SAMPLES, "read_bytes": 65536, "reads": 32},
    ),
    "memory_pressure": Made(system={"pressure": {"memory": 0.4}, "swapped_in_bytes_s": 5e7}),
    "ipc_copy": Made(receive_s=0.01),
    "sampler_overhead": Made(phases={"sampler": 0.006}, receive_s=0.0065),
    "worker_startup": Made(passes=6, count=25, startup_s=0.6, settings={"persistent_workers": False}),
    "gc_pauses": Made(events=tuple(EventLine(what="gc", at_s=float(at), seconds=0.4) for at in range(3))),
    "host_sync": Made(phases={"forward": 0.004, "backward": 0.004, "sync": 0.012}),
    "pageable_copy": Made(phases={"forward": 0.012, "h2d": 0.008}, settings={"pin_memory": False}),
    "logging_overhead": Made(phases={"forward": 0.012, "log": 0.008}),
    "main_process_python": Made(phases={"forward": 0.004, "backward": 0.004}),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_comes_first(cause):
    found = diagnose(CAUSES[cause].recording())
    assert found.verdict == "findings"
    assert found.findings[0].rule == cause, [(f.rule, f.gain, f.confidence) for f in found.findings]
    assert found.findings[0].gain_low <= found.findings[0].gain <= found.findings[0].gain_high


HEALTHY = {
    "a loop that finds its batches ready": Made(),
    "a step that is slower than everything": Made(step_s=0.2, cpu_s=0.1),
    "no loading at all": Made(cpu_s=0.0, receive_s=0.0),
    "evaluation every now and then": Made(phases={"evaluation": 0.001}),
    "few cores, all in use, but in time": Made(cores=2, workers=2, cpu_s=0.015, step_s=0.02, main={"cpu": 0.5}),
}


@pytest.mark.parametrize("run", HEALTHY)
def test_a_healthy_run_has_no_finding(run):
    found = diagnose(HEALTHY[run].recording())
    assert found.verdict == "healthy"
    assert not found.findings


def test_every_rule_has_a_page_and_is_named_as_its_file():
    for name, rule in all_rules().items():
        page = __import__(rule.__module__, fromlist=["_"]).__doc__
        assert rule.__module__.endswith(name)
        assert len(page.split("\n\n")) >= 2


def test_waiting_that_nobody_saw_the_reason_of_is_undetermined_and_asks_for_an_experiment():
    recording = Made(workers=4, cpu_s=0.001, latency_s=0.2).recording()
    found = diagnose(recording)
    assert found.verdict in ("undetermined", "findings")
    assert found.experiment or found.findings[0].experiment


def test_few_steps_are_too_few():
    found = diagnose(Made(count=5).recording())
    assert found.verdict == "undetermined"
    assert "too few" in found.sentence
