"""The evidence of recordings: derived numbers, and recordings that are nearly empty or hold impossible values."""

import math
from dataclasses import fields
from functools import cached_property

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.simulated_recordings import TorchRun

from penstock.core.finding import Diagnosis
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.rules import all_rules
from penstock.diagnose.verdict import diagnose
from penstock.diagnose.worker_curve import rates_over_workers
from penstock.recording.bounds import is_plausible
from penstock.recording.format import (
    DiskLoad,
    EndLine,
    EpochStartLine,
    EventLine,
    FetchLine,
    LoaderLine,
    LoaderSetting,
    Machine,
    ProcessLoad,
    RunLine,
    StackSamplesLine,
    StepLine,
    StorageLine,
    SystemLine,
)
from penstock.recording.reader import Recording

MAY_BE_NAN = {"samples_per_batch"}
PARTS = ("settings", "loop", "workers", "machine", "ipc", "contention")


def step(batch, wait_s=0.01, step_s=0.02, **more):
    at_s = more.pop("at_s", batch * (wait_s + step_s))
    return StepLine(loader=more.pop("loader", 0), batch=batch, at_s=at_s, wait_s=wait_s, step_s=step_s, **more)


def fetch(batch, fetch_s=0.02, **more):
    worker = more.pop("worker", max(0, batch) % 2)
    return FetchLine(loader=more.pop("loader", 0), batch=batch, worker=worker, at_s=0.0, fetch_s=fetch_s, **more)


def recorded(steps=(), fetches=(), *, settings=None, machine=None, **more):
    loader_settings = {name: LoaderSetting(requested=value, in_force=value) for name, value in (settings or {}).items()}
    loaders = more.pop("loaders", {0: LoaderLine(loader=0, type="torch", settings=loader_settings)})
    run = RunLine(machine=machine or Machine(cores=4, usable_cores=4))
    return Recording(run=run, loaders=loaders, steps=tuple(steps), fetches=tuple(fetches), **more)


def numbers(value):
    """Yield all numbers in a value, however deeply they are nested."""
    if isinstance(value, int | float | np.number):
        yield float(value)
    elif isinstance(value, np.ndarray):
        yield from (float(number) for number in value.ravel())
    elif isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from numbers(inner)
    elif hasattr(type(value), "__dataclass_fields__") and not isinstance(value, Recording | Evidence):
        for field in fields(value):
            yield from numbers(getattr(value, field.name))


def derived_values(evidence):
    """Yield (name, value) of every derived value of the evidence and of its parts."""
    for owner in (evidence, *(getattr(evidence, part) for part in PARTS)):
        for name, value in vars(type(owner)).items():
            if isinstance(value, cached_property) and name not in MAY_BE_NAN:
                yield f"{type(owner).__name__}.{name}", getattr(owner, name)


def assert_diagnosed(recording):
    """Assert that no rule raises, and that all derived numbers and all texts are finite."""
    for evidence in gather(recording):
        for name, value in derived_values(evidence):
            assert all(map(math.isfinite, numbers(value))), name
        for rule in all_rules().values():
            rule(evidence)
    found = diagnose(recording)
    assert isinstance(found, Diagnosis)
    assert all(map(math.isfinite, numbers((found.findings, found.impact)))), found
    assert all(0 <= finding.confidence <= 1 for finding in found.findings)
    summaries, reasons = [each.summary for each in found.findings], [each.why for each in found.rejected]
    texts = [found.sentence, found.experiment, *summaries, *reasons]
    assert not any(word in text.lower() for text in texts for word in ("nan", "inf ", "inf%")), texts


STEPS = [step(index) for index in range(40)]
FETCHES = [fetch(index, cpu_s=0.015) for index in range(40)]
WORKERS = {"num_workers": 2, "prefetch_factor": 2}
SYSTEM = SystemLine(at_s=0.5, cpu=1.0)

DEGENERATE = {
    "nothing at all": recorded(),
    "a loader and no steps": recorded(fetches=FETCHES, settings=WORKERS),
    "one step": recorded(STEPS[:1]),
    "one step and its fetch": recorded(STEPS[:1], FETCHES[:1], settings=WORKERS),
    "two steps": recorded(STEPS[:2], FETCHES[:2], settings=WORKERS),
    "one batch in every epoch": recorded(
        [step(0, epoch=epoch, at_s=epoch / 10) for epoch in range(30)], settings=WORKERS
    ),
    "no fetches": recorded(STEPS, settings=WORKERS),
    "no settings": recorded(STEPS, FETCHES),
    "no workers": recorded(STEPS, [fetch(index, worker=-1) for index in range(40)], settings={"num_workers": 0}),
    "fewer fetches than steps": recorded(STEPS, FETCHES[:5], settings=WORKERS),
    "more fetches than steps": recorded(STEPS[:25], FETCHES, settings=WORKERS),
    "no time passes": recorded(
        [step(index, 0.0, 0.0, at_s=0.0) for index in range(40)], [fetch(index, 0.0) for index in range(40)]
    ),
    "no time passes at first": recorded(
        [step(index, 0.0, 0.0 if index < 200 else 1.0, at_s=0.0) for index in range(400)]
    ),
    "only the first batches take time": recorded(
        [step(0, 1.0, 0.0, epoch=epoch) for epoch in range(30)] + [step(1, 0.0, 0.0) for index in range(30)],
        settings=WORKERS,
    ),
    "most fetches take no time": recorded(
        [step(index, 0.5) for index in range(40)],
        [fetch(index, 1.0 if index % 10 == 0 else 0.0) for index in range(40)],
    ),
    "all waits are zero": recorded([step(index, wait_s=0.0) for index in range(40)], FETCHES, settings=WORKERS),
    "all steps are zero": recorded([step(index, step_s=0.0) for index in range(40)], FETCHES, settings=WORKERS),
    "all steps are zero and workers take no time": recorded(
        [step(index, step_s=0.0, ready=0) for index in range(40)],
        [fetch(index, 0.0) for index in range(40)],
        settings=WORKERS,
    ),
    "fetches without a batch number": recorded(
        STEPS, [fetch(-1, worker=index % 2) for index in range(40)], settings={**WORKERS, "in_order": False}
    ),
    "more CPU time than time": recorded(
        STEPS, [fetch(index, 0.01, cpu_s=0.010002, queue_s=0.001) for index in range(40)], settings=WORKERS
    ),
    "more time in collate_fn than in the fetch": recorded(STEPS, [fetch(index, collate_s=0.03) for index in range(40)]),
    "phases longer than the step": recorded(
        [step(index, phases={"forward": 0.5, "sync": 0.3, "log/checkpoint": 0.4, "gc": 1.0}) for index in range(40)]
    ),
    "no phases were timed": recorded([step(index, profiled=False) for index in range(40)], FETCHES, settings=WORKERS),
    "impossible settings": recorded(STEPS, FETCHES, settings={"num_workers": -3, "prefetch_factor": 0}),
    "settings that are not numbers": recorded(STEPS, FETCHES, settings={"num_workers": "8", "prefetch_factor": [2]}),
    "huge settings": recorded(STEPS, FETCHES, settings={"num_workers": 10**9, "prefetch_factor": 10**9}),
    "an impossible worker number": recorded(
        STEPS, [fetch(index, 0.1, worker=3 * 10**8) for index in range(40)], settings=WORKERS
    ),
    "a machine without cores": recorded(STEPS, FETCHES, settings=WORKERS, machine=Machine(cores=0, usable_cores=0)),
    "a negative quota": recorded(STEPS, FETCHES, settings=WORKERS, machine=Machine(quota_cores=-1.0)),
    "system lines with hardly any values": recorded(STEPS, FETCHES, settings=WORKERS, system=(SYSTEM, SYSTEM)),
    "empty stack samples": recorded(
        STEPS,
        FETCHES,
        settings=WORKERS,
        stack_samples=(StackSamplesLine(at_s=1.0, samples=0), StackSamplesLine(at_s=1, samples=3)),
    ),
    "batches of 0 samples": recorded([step(index, samples=0) for index in range(40)], FETCHES, settings=WORKERS),
    "storage that delivered nothing": recorded(
        [step(index, 0.1) for index in range(40)],
        [fetch(index, 0.2, read_bytes=1 << 20, reads=3) for index in range(40)],
        settings=WORKERS,
        storage=(
            StorageLine(
                loader=0,
                readers=2,
                read_bytes=4096,
                sequential_alone=0.0,
                sequential_together=0.0,
                random_alone=-1.0,
                random_together=0.0,
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_every_degenerate_recording_is_diagnosed(name):
    assert_diagnosed(DEGENERATE[name])
    rates_over_workers(DEGENERATE[name])


# -- derived numbers -----------------------------------------------------------------------------------------------


def evidence_of(steps=STEPS, fetches=(), **more):
    (evidence,) = gather(recorded(steps, fetches, **more))
    return evidence


def test_the_wait_of_the_first_step_of_each_epoch_is_start_up():
    found = evidence_of(
        [step(index, 5.0 if index == 0 else 0.1, 1.0, epoch=epoch) for epoch in range(2) for index in range(3)]
    )
    assert found.loop.startup_s.tolist() == [5.0, 5.0]
    assert found.loop.wait_s.tolist() == [0.1] * 4
    assert found.loop.steady_s == pytest.approx(4.4)
    assert found.loop.total_s == pytest.approx(4.4 + 12.0)
    assert found.loop.cycle_s == pytest.approx(1.1)


def test_pauses_are_subtracted_from_a_step_however_they_are_nested():
    phases = {"forward": 1.0, "log": 3.0, "log/checkpoint": 2.0, "evaluation": 4.0, "evaluation/checkpoint": 1.0}
    found = evidence_of([step(1, 0.0, 9.0, phases=phases)])
    assert found.loop.pause_s.tolist() == [6.0]
    assert found.loop.busy_s.tolist() == [3.0]
    assert found.loop.outside_phases_s == pytest.approx(1.0)  # 9 less forward, log and evaluation
    assert found.loop.phase_s("checkpoint").tolist() == [3.0]


def test_time_outside_phases_is_unknown_if_no_phase_was_recorded():
    assert evidence_of().loop.outside_phases_s is None


PARTLY_PROFILED = [
    step(1, step_s=1.0, phases={"forward": 0.2, "log": 0.1}, device_phases={"forward": 0.1}),
    step(2, step_s=1.0, phases={"log": 0.3}, profiled=False),
    step(3, step_s=1.0, profiled=False),
    step(4, step_s=1.0, profiled=False),
    step(5, step_s=1.0, phases={"forward": 0.6}, device_phases={"forward": 0.5}),
]


def test_a_step_without_timed_phases_is_represented_by_the_nearest_with_them():
    found = evidence_of(PARTLY_PROFILED)
    assert found.loop.phase_s("forward").tolist() == [0.2, 0.2, 0.2, 0.6, 0.6]
    assert found.loop.represented.tolist() == [3, 0, 0, 0, 2]
    assert found.loop.outside_phases_s == pytest.approx((3 * 0.7 + 2 * 0.4) / 5)
    assert found.loop.device_s() == pytest.approx((3 * 0.1 + 2 * 0.5) / 5)


def test_phases_that_are_always_timed_need_no_representative():
    assert evidence_of(PARTLY_PROFILED).loop.phase_s("log").tolist() == [0.1, 0.3, 0.0, 0.0, 0.0]
    assert (
        evidence_of(PARTLY_PROFILED[1:4]).loop.phase_s("forward").tolist() == [0.0] * 3
    )  # no phases of these steps were timed


def test_receiving_a_ready_batch_does_not_count_as_starved():
    steps = [step(index, 0.01, 0.99, ready=2) for index in range(1, 9)] + [step(9, 1.01, 0.99, ready=0)]
    found = evidence_of(steps)
    assert found.ipc.receive_s == pytest.approx(0.01)
    assert found.starved_share == pytest.approx(1.0 / 10.0, rel=0.01)


def test_values_that_were_not_recorded_are_unknown_not_0():
    found = evidence_of()
    assert (found.workload, found.loop.outside_phases_s) == (None, None)
    assert math.isnan(found.loop.samples_per_batch)
    assert found.loop.ready_batches.tolist() == [-1] * 39


@pytest.mark.parametrize(
    ("settings", "workers", "prefetch"),
    [
        ({"num_workers": 8, "prefetch_factor": 4}, 8, 4),
        ({"num_workers": 0, "prefetch_factor": None}, 0, 2),
        ({}, 2, 2),
        ({"num_workers": True, "prefetch_factor": True}, 2, 2),
        ({"num_workers": -1, "prefetch_factor": 0}, 2, 2),
        ({"num_workers": 10**12, "prefetch_factor": 10**12}, 2, 2),
    ],
)
def test_impossible_settings_are_treated_as_unknown(settings, workers, prefetch):
    found = evidence_of(fetches=FETCHES, settings=settings)
    assert (found.settings.num_workers, found.settings.prefetch_factor) == (workers, prefetch)


@pytest.mark.parametrize(
    ("usable", "quota", "cores"), [(8, None, 8), (8, 2.5, 2.5), (2, 16.0, 2), (0, None, 1), (4, 0.0, 4)]
)
def test_cores_are_limited_by_affinity_and_quota(usable, quota, cores):
    assert evidence_of(machine=Machine(usable_cores=usable, quota_cores=quota)).machine.cores == cores


def test_a_fetch_is_computing_waiting_for_a_core_and_other_waiting():
    found = evidence_of(fetches=[fetch(index, 1.0, cpu_s=0.25, queue_s=0.25) for index in range(40)])
    assert found.workers.blocked_s.tolist() == [0.5] * 40
    assert found.workers.share_of_fetch(found.workers.cpu_s) == pytest.approx(0.25)


def test_states_are_shares_of_the_stack_samples_of_the_loaders_workers():
    stack_samples = (
        StackSamplesLine(loader=0, worker=0, at_s=1, samples=4, states={"running": 1, "read": 3}, functions={"a:f": 4}),
        StackSamplesLine(loader=0, worker=1, at_s=1, samples=4, states={"lock": 4}, functions={"a:g": 2}),
        StackSamplesLine(loader=1, worker=0, at_s=1, samples=9, states={"sleep": 9}, functions={"a:h": 9}),
        StackSamplesLine(at_s=1, samples=2, states={"running": 2}, functions={"b:main": 2}),
    )
    found = evidence_of(stack_samples=stack_samples)
    assert found.workers.states == {"running": 0.125, "read": 0.375, "lock": 0.5}
    assert found.workers.blocked_in("lock") == pytest.approx(4 / 7)
    assert found.loop.thread_states == {"running": 1.0}
    assert list(found.workers.functions.items()) == [("a:f", pytest.approx(4 / 6)), ("a:g", pytest.approx(2 / 6))]
    assert found.loop.functions == {"b:main": 1.0}


def test_only_system_lines_whose_second_lies_in_steady_steps_count():
    system = tuple(SystemLine(at_s=float(second), others_cpu=float(second)) for second in range(10))
    found = evidence_of([step(index, 0.5, 0.5, at_s=4.0 + index) for index in range(1, 3)], system=system)
    assert [line.at_s for line in found.machine.system] == [6.0, 7.0]
    assert found.machine.others_cpu == pytest.approx(6.5)


def test_loaders_are_sorted_by_their_waiting():
    loaders = {number: LoaderLine(loader=number) for number in range(3)}
    steps = [step(1, 1.0, loader=0), step(1, 3.0, loader=1)]
    assert [evidence.loader.loader for evidence in gather(recorded(steps, loaders=loaders))] == [1, 0]


def test_the_workload_of_a_run_has_the_rate_of_the_run():
    (found,) = gather(TorchRun(workers=2, cpu_s=0.08, step_s=0.02, count=100).recording())
    assert found.workload.rate() == pytest.approx(1 / found.loop.cycle_s, rel=0.05)


# -- random recordings ---------------------------------------------------------------------------------------------

TIMES = st.sampled_from([0.0, 1e-9, 1e-4, 0.003, 0.02, 0.5, 20.0, 3e8])
SHARES = st.sampled_from([0.0, 0.001, 0.3, 1.0, 7.5, 1e6])
COUNTS = st.sampled_from([0, 1, 2, 3, 16, 300_000_000])
NAMES = ("running", "read", "open", "lock", "sleep", "network", "write", "other")
PHASES = ("forward", "backward", "optimizer", "h2d", "sync", "gc", "sampler", "log", "evaluation", "a/checkpoint")
UNKNOWN = st.none()


@st.composite
def any_step(draw):
    times = {name: draw(TIMES) for name in ("at_s", "wait_s", "step_s")}
    phases = draw(st.dictionaries(st.sampled_from(PHASES), TIMES, max_size=4))
    device = draw(st.dictionaries(st.sampled_from(PHASES), TIMES, max_size=1))
    counts = {name: draw(UNKNOWN | COUNTS) for name in ("samples", "ready", "outstanding", "worker")}
    return StepLine(loader=draw(st.integers(0, 1)), batch=draw(st.integers(0, 9)), epoch=draw(st.integers(0, 2)),
                phases=phases, device_phases=device, **times, **counts)  # fmt: skip


@st.composite
def any_fetch(draw):
    times = {name: draw(TIMES) for name in ("at_s", "fetch_s", "collate_s", "cpu_s", "queue_s", "slowest_s")}
    counts = {name: draw(COUNTS) for name in ("samples", "read_bytes", "device_bytes", "reads", "opens")}
    worker = draw(st.sampled_from([-1, 0, 1, 2, 300_000_000]))
    return FetchLine(loader=draw(st.integers(0, 1)), batch=draw(st.integers(-1, 9)), worker=worker, **times, **counts)


@st.composite
def any_system_line(draw):
    process = st.builds(
        ProcessLoad, worker=st.sampled_from([None, -2, 0, 1]), loader=st.integers(-1, 1), cpu=SHARES, queue=SHARES
    )
    disk = st.builds(DiskLoad, name=st.sampled_from(["sda", "nvme"]), read_bytes_s=SHARES, reads_s=SHARES, busy=SHARES)
    lists = {"processes": tuple(draw(st.lists(process, max_size=2))), "disks": tuple(draw(st.lists(disk, max_size=2)))}
    shares = {name: draw(SHARES) for name in ("cpu", "iowait", "others_cpu", "major_faults_s", "swapped_in_bytes_s")}
    return SystemLine(
        at_s=draw(TIMES), throttled=draw(UNKNOWN | SHARES), memory_free_bytes=draw(COUNTS), **lists, **shares
    )


@st.composite
def any_recording(draw):
    numbers = st.none() | st.sampled_from([-1, 0, 1, 3, 100, 10**12]) | st.just("8")
    names = ("num_workers", "prefetch_factor", "batch_size", "pin_memory", "in_order", "persistent_workers")
    settings = {name: LoaderSetting(in_force=draw(numbers | st.booleans())) for name in names}
    loaders = {
        number: LoaderLine(loader=number, settings=settings, dataset_size=draw(UNKNOWN | COUNTS), batches=draw(COUNTS))
        for number in (0, 1)
    }
    machine = Machine(usable_cores=draw(st.integers(-1, 8)), quota_cores=draw(UNKNOWN | SHARES))
    steps = [draw(any_step()) for _ in range(4)]
    fetches = [draw(any_fetch()) for _ in range(4)]
    repeats = draw(st.integers(0, 30))
    states = st.dictionaries(st.sampled_from(NAMES), COUNTS, max_size=3)
    stack_samples = st.builds(StackSamplesLine, at_s=TIMES, samples=COUNTS, loader=st.integers(-1, 1), states=states,
                      worker=st.none() | st.integers(-1, 2), functions=st.just({"a:b": 3}))  # fmt: skip
    rates = dict.fromkeys(("sequential_alone", "sequential_together", "random_alone", "random_together"), SHARES)
    storage = st.builds(StorageLine, loader=st.just(0), readers=st.integers(0, 5), read_bytes=COUNTS, **rates)
    event_names = st.sampled_from(["gc", "checkpoint", "worker_started", "evaluation", "nonsense"])
    return Recording(
        run=RunLine(machine=machine),
        loaders=loaders,
        epochs=tuple(EpochStartLine(loader=0, epoch=number, at_s=draw(TIMES)) for number in range(2)),
        steps=tuple(steps * repeats),
        fetches=tuple(fetches * draw(st.sampled_from([0, 1, repeats]))),
        stack_samples=tuple(draw(st.lists(stack_samples, max_size=3))),
        system=tuple(draw(st.lists(any_system_line(), max_size=3))),
        storage=tuple(draw(st.lists(storage, max_size=1))),
        events=tuple(draw(st.lists(st.builds(EventLine, what=event_names, at_s=TIMES, seconds=TIMES), max_size=3))),
        end=draw(UNKNOWN | st.builds(EndLine, at_s=TIMES)),
    )


@settings(max_examples=60, phases=set(Phase) - {Phase.explain}, suppress_health_check=list(HealthCheck))
@given(any_recording())
def test_every_recording_that_can_be_loaded_is_diagnosed_with_finite_numbers(recording):
    lines = (*recording.steps, *recording.fetches, *recording.system, *recording.stack_samples, *recording.storage)
    assert all(map(is_plausible, lines)), "load() would refuse this recording"
    assert_diagnosed(recording)
