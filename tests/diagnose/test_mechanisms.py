"""Causes with similar symptoms: simulated runs in which one fact of the recording decides between them.

Most of these runs were once diagnosed wrongly.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.simulated_recordings import TorchRun

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.rules import all_rules
from penstock.diagnose.verdict import diagnose
from penstock.model.edits import with_workers
from penstock.recording.format import (
    EpochStartLine,
    EventLine,
    FetchLine,
    ProcessLoad,
    StackSamplesLine,
    StepLine,
    SystemLine,
)


def with_fields(lines, **functions):
    """Return the lines with fields replaced: each is a function of the line."""
    return tuple(
        msgspec.structs.replace(line, **{name: value_of(line) for name, value_of in functions.items()})
        for line in lines
    )


def with_processes(recording, main, worker):
    """Return the recording with these loads of the main process and of each worker in every system line."""
    workers = int(recording.loaders[0].settings["num_workers"].in_force)
    processes = (ProcessLoad(**main), *(ProcessLoad(loader=0, worker=index, **worker) for index in range(workers)))
    return replace(recording, system=with_fields(recording.system, processes=lambda _: processes))


def first_finding(recording):
    findings = diagnose(recording).findings
    return findings[0] if findings else None


# -- workers without a core ----------------------------------------------------------------------------------------


def workers_on_one_core():
    """Return a run on two cores whose workers share one: a batch is ready, but receiving it waits for the worker."""
    recording = TorchRun(workers=4, cores=1, cpu_s=0.05, step_s=0.015, step_cpu=0.05).recording()
    machine = msgspec.structs.replace(recording.run.machine, usable_cores=2)
    recording = replace(
        recording,
        run=msgspec.structs.replace(recording.run, machine=machine),
        steps=with_fields(
            recording.steps,
            idle_s=lambda _: 0.0,
            ready=lambda _: 1,
            wait_s=lambda _: 0.035,
            at_s=lambda step: step.batch * 0.05,
        ),
        fetches=with_fields(recording.fetches, queue_s=lambda fetch: fetch.fetch_s - fetch.cpu_s),
    )
    return with_processes(
        recording, {"cpu": 0.05, "thread_cpu": 0.05, "cores": 2}, {"cpu": 0.24, "thread_cpu": 0.23, "cores": 1}
    )


def test_workers_pinned_to_one_core_are_named_with_the_cores_they_may_use():
    finding = first_finding(workers_on_one_core())
    assert finding.rule == "cpu_oversubscribed"
    assert "1 of 2 cores" in finding.summary
    assert "affinity" in finding.advice
    assert 0.5 < finding.gain < 1.2  # twice the cores, less the part that the loop needs


def test_receiving_a_batch_takes_no_longer_than_the_loop_computes():
    evidence = gather(workers_on_one_core())[0]
    assert mean(evidence.loop.wait_s) > 0.02
    assert evidence.ipc.receive_s == pytest.approx(0.05 * evidence.loop.cycle_s)
    assert evidence.starved_share > 0.5


def test_receiving_a_batch_takes_long_if_another_thread_holds_the_interpreter():
    recording = with_processes(workers_on_one_core(), {"cpu": 1.0, "thread_cpu": 0.05}, {"cpu": 0.24})
    assert gather(recording)[0].ipc.receive_s > 0.02


# -- helper threads of a worker ------------------------------------------------------------------------------------


def waiting_for_threads(cpu, states, functions):
    """Return a run whose workers wait while their helper threads compute; `cpu` is the cores that a worker uses."""
    recording = TorchRun(workers=4, cores=2, cpu_s=0.008, latency_s=0.25, step_s=0.012).recording()
    stack_samples = StackSamplesLine(loader=0, worker=0, at_s=1.0, samples=100, states=states, functions=functions)
    return with_processes(
        replace(recording, stack_samples=(stack_samples,)),
        {"cpu": 0.1, "thread_cpu": 0.1},
        {"cpu": cpu, "thread_cpu": 0.03},
    )


def test_helper_threads_that_compute_are_decoding_not_a_lock():
    recording = waiting_for_threads(0.47, {"running": 60, "lock": 40}, {"threading:Condition.wait": 90})
    finding = first_finding(recording)
    assert finding.rule == "decode_bound"
    assert finding.gain > 2


def test_helper_threads_that_read_are_not_a_lock_between_workers():
    recording = waiting_for_threads(0.03, {"running": 20, "lock": 80}, {"concurrent.futures._base:Future.result": 80})
    assert [finding.rule for finding in diagnose(recording).findings] == ["latency_bound"]


def test_waiting_for_the_threads_of_a_library_is_not_a_lock_between_workers():
    recording = waiting_for_threads(0.25, {"running": 70, "lock": 30}, {"__main__:Data.__getitem__": 95})
    rejected = {cause.rule: cause.why for cause in diagnose(recording).rejected}
    assert "threads of their own" in rejected["lock_contention"]


def test_a_lock_between_processes_is_lock_contention():
    recording = waiting_for_threads(
        0.03, {"running": 20, "lock": 80}, {"multiprocessing.synchronize:Lock.__enter__": 80}
    )
    assert first_finding(recording).rule == "lock_contention"


# -- the garbage collector in workers ------------------------------------------------------------------------------


def with_collections(gc_s):
    """Return a run in which some batches compute 20 times as long; `gc_s` seconds of that are in the collector."""
    slow = np.arange(400) % 25 == 4
    recording = TorchRun(workers=4, count=400, cores=16, cpu_s=np.where(slow, 0.4, 0.02), step_s=0.01).recording()
    fetches = with_fields(recording.fetches, gc_s=lambda fetch: gc_s if fetch.cpu_s > 0.1 else 0.0)
    return replace(recording, fetches=fetches)


def test_collections_in_workers_are_not_slow_samples():
    finding = first_finding(with_collections(0.38))
    assert finding.rule == "gc_pauses"
    assert "16 of 400 batches" in finding.evidence[0]
    assert "worker_init_fn" in finding.advice


def test_slow_samples_are_named_if_the_collector_took_little():
    assert first_finding(with_collections(0.001)).rule == "straggler_samples"


def test_the_remedy_for_collections_also_shortens_receiving_a_batch():
    recording = with_collections(0.38)
    steps = with_fields(recording.steps, idle_s=lambda step: step.wait_s - (0.001 if step.batch % 3 == 0 else 0.012))
    evidence = gather(replace(recording, steps=tuple(step for step in steps if step.idle_s >= 0)))[0]
    assert evidence.ipc.receive_cpu_s == pytest.approx(0.012, rel=0.1)
    assert evidence.ipc.undisturbed_receive_cpu_s == pytest.approx(0.001, rel=0.1)
    remedied = all_rules()["gc_pauses"](evidence).remedy(evidence.workload)
    assert remedied.receive_s.max() == evidence.ipc.undisturbed_receive_cpu_s < evidence.workload.receive_s.min()


# -- the cost of sending and receiving a batch, and crowded cores --------------------------------------------------


def test_the_cost_of_sending_is_what_workers_compute_beside_their_fetches():
    recording = TorchRun(workers=2, cores=2, cpu_s=0.02, step_s=0.012, receive_s=0.002).recording()
    cycle_s = gather(recording)[0].loop.cycle_s

    def evidence_with(extra_s):
        """Return the evidence if workers compute so many seconds per batch beside their fetches."""
        cpu = (0.02 + extra_s) / 2 / cycle_s
        return gather(with_processes(recording, {"cpu": 0.4, "thread_cpu": 0.4}, {"cpu": cpu, "thread_cpu": cpu}))[0]

    assert evidence_with(0.001).ipc.send_cpu_s == pytest.approx(0.001, rel=0.01)
    assert evidence_with(0.1).ipc.send_cpu_s == evidence_with(0.1).ipc.receive_cpu_s > 0
    assert evidence_with(-0.01).ipc.send_cpu_s == 0
    assert evidence_with(0.001).workload.cpu_s.mean() == pytest.approx(0.021, rel=0.01)


def received_in_pairs():
    """Return a run in which every other wait receives two pickled batches, so the next step finds its batch ready."""
    recording = TorchRun(workers=2, cores=4, cpu_s=0.001, step_s=0.008).recording()

    def wait(step):
        return 0.034 if step.batch % 2 else 0.0002

    steps = with_fields(
        recording.steps, wait_s=wait, idle_s=lambda step: 0.006 if step.batch % 2 else 0.0, ready=lambda _: 1
    )
    return with_processes(
        replace(recording, steps=steps), {"cpu": 0.62, "thread_cpu": 0.62}, {"cpu": 0.3, "thread_cpu": 0.03}
    )


def test_the_cost_of_receiving_is_at_least_what_the_loop_computes_beyond_its_steps():
    recording = received_in_pairs()
    evidence = gather(recording)[0]
    assert evidence.ipc.receive_s == pytest.approx(0.62 * evidence.loop.cycle_s - 0.008)
    assert first_finding(recording).rule == "ipc_copy"
    assert first_finding(recording).gain > 1


def test_a_remedy_that_changes_nothing_has_no_gain_if_the_model_predicts_the_run_too_fast():
    recording = replace(received_in_pairs(), system=())
    fetches = with_fields(recording.fetches, cpu_s=lambda fetch: 0.02 if fetch.batch % 67 == 0 else 0.001)
    fetches = with_fields(fetches, fetch_s=lambda fetch: fetch.cpu_s)
    recording = replace(recording, fetches=fetches)
    evidence = gather(recording)[0]
    assert evidence.workload.steady_rate * evidence.loop.cycle_s > 2
    assert diagnose(recording).findings == ()


def crowded_cores(**main):
    """Return a run whose two workers decode on two cores while the loop waits for a batch and for a core."""
    recording = TorchRun(workers=2, cores=2, cpu_s=0.0148, step_s=0.008).recording()
    steps = with_fields(
        recording.steps, wait_s=lambda _: 0.0035, idle_s=lambda _: 0.002, at_s=lambda step: step.batch * 0.0115
    )
    return with_processes(
        replace(recording, steps=steps), {"cpu": 0.2, "thread_cpu": 0.2, **main}, {"cpu": 0.7, "thread_cpu": 0.7}
    )


def test_decoding_that_makes_the_loop_wait_for_a_core_is_the_cause_though_cores_are_sometimes_idle():
    recording = crowded_cores(queue=0.2)
    assert gather(recording)[0].machine.free_cores > 0.3
    finding = first_finding(recording)
    assert finding.rule == "decode_bound"
    assert gather(recording)[0].workers.fetch_cores > 1.5  # while the loop waits; it is 1.3 over all of the time


def test_decoding_is_not_the_cause_if_other_programs_use_the_cores():
    recording = crowded_cores(queue=0.2)
    recording = replace(recording, system=with_fields(recording.system, others_cpu=lambda _: 0.5))
    assert "decode_bound" not in [finding.rule for finding in diagnose(recording).findings]


def test_the_gain_of_persistent_workers_does_not_count_the_first_start():
    recording = TorchRun(workers=4, count=20, epochs=10, startup_s=0.5, step_s=0.02, cpu_s=0.001).recording()
    finding = first_finding(recording)
    assert finding.rule == "worker_startup"
    steps_s = sum(step.step_s + step.wait_s for step in recording.steps) - 10 * 0.5
    assert finding.gain == pytest.approx(9 * 0.5 / steps_s, rel=0.05)


# -- a change of the rate, and late reads --------------------------------------------------------------------------


def with_latency(latency_s):
    run = TorchRun(workers=4, count=400, cpu_s=0.002, latency_s=latency_s, step_s=0.01, cores=16, states={"sleep": 80})
    return run.recording()


def test_a_run_that_waited_only_at_first_is_a_regime_change():
    finding = first_finding(with_latency(np.where(np.arange(400) < 120, 0.3, 0.001)))
    assert finding.rule == "regime_change"
    assert finding.summary.startswith("Until step 1")
    assert "waiting for data" in finding.summary


def test_a_third_of_the_batches_slow_at_random_is_tail_latency():
    late = np.random.default_rng(3).random(400) < 0.3
    assert first_finding(with_latency(np.where(late, 0.25, 0.001))).rule == "tail_latency"


@pytest.mark.parametrize(("together", "rule"), [(1.05, "storage_bandwidth"), (3.9, "tail_latency")])
def test_late_reads_are_tail_latency_only_if_readers_do_not_slow_each_other(together, rule):
    run = TorchRun(
        workers=4,
        count=400,
        cpu_s=0.002,
        latency_s=np.where(np.arange(400) % 7 < 2, 0.25, 0.02),
        step_s=0.01,
        cores=16,
        states={"read": 85},
        fetch={"read_bytes": 1 << 20, "reads": 16},
        after={"sequential_alone": 60e6, "sequential_together": together * 60e6},
    )
    assert first_finding(run.recording()).rule == rule


def test_steps_that_were_slow_by_themselves_at_first_are_no_finding():
    recording = TorchRun(workers=4, cpu_s=0.001).recording()
    steps = with_fields(recording.steps, step_s=lambda step: 0.2 if step.batch < 60 else 0.02, wait_s=lambda _: 0.0003)
    assert diagnose(replace(recording, steps=steps)).verdict == "healthy"


# -- steps whose phases were not timed -----------------------------------------------------------------------------


def rarely_profiled():
    """Return a run in which every fifth step takes 80 ms more outside all phases.

    The phases of the first 40 steps were timed, and later only those of some short steps.
    """
    recording = TorchRun(workers=4, count=320, cpu_s=0.001, step_s=0.015).recording()

    def phases(step):
        return {"forward": 0.013, "backward": 0.001} if profiled(step) else {}

    def profiled(step):
        return step.batch < 40 or step.batch % 32 == 1

    steps = with_fields(
        recording.steps,
        step_s=lambda step: 0.095 if step.batch % 5 == 0 else 0.015,
        wait_s=lambda _: 0.0003,
        profiled=profiled,
        phases=phases,
    )
    return replace(recording, steps=steps)


def test_long_steps_without_timed_phases_are_estimated_from_long_steps_with_them():
    evidence = gather(rarely_profiled())[0]
    assert evidence.loop.outside_phases_s == pytest.approx(0.2 * 0.081 + 0.8 * 0.001, rel=0.05)
    assert mean(evidence.loop.phase_s("forward")) == pytest.approx(0.013, rel=0.05)
    assert first_finding(rarely_profiled()).rule == "main_process_python"


# -- epochs of another loader within a step, and epochs of one step ------------------------------------------------


def with_validation(left_early):
    """Return a run in which every fortieth step contains ten steps of a validation loader.

    If the loop leaves that loader early, its last step lasts until the loader is used again.
    """
    recording = TorchRun(workers=4, cpu_s=0.001, step_s=0.015, phases={"forward": 0.013}).recording()
    steps, epochs, validated_s = [], list(recording.epochs), 0.0
    for step in recording.steps:
        at_s = step.at_s + validated_s
        if step.batch % 40 == 39:
            begin = at_s + step.wait_s + 0.015
            epochs.append(EpochStartLine(loader=1, epoch=step.batch, at_s=begin))
            validation = [
                StepLine(loader=1, epoch=step.batch, batch=index, at_s=begin + index * 0.02, wait_s=0.001, step_s=0.019)
                for index in range(10)
            ]
            steps += [*validation[:-1], msgspec.structs.replace(validation[-1], step_s=0.5 if left_early else 0.019)]
            validated_s += 0.2
            step = msgspec.structs.replace(step, step_s=0.215)
        steps.append(msgspec.structs.replace(step, at_s=at_s))
    loaders = {**recording.loaders, 1: msgspec.structs.replace(recording.loaders[0], loader=1, dataset_size=500)}
    return replace(recording, loaders=loaders, steps=tuple(steps), epochs=tuple(epochs))


@pytest.mark.parametrize("left_early", [True, False])
def test_an_epoch_of_another_loader_within_a_step_is_a_pause(left_early):
    recording = with_validation(left_early)
    evidence = next(evidence for evidence in gather(recording) if evidence.loader.loader == 0)
    assert evidence.loop.pause_s[evidence.loop.pause_s > 0] == pytest.approx(0.2, abs=0.01)
    assert np.median(evidence.loop.busy_s[evidence.loop.pause_s > 0]) == pytest.approx(0.015, abs=0.01)
    assert diagnose(recording).verdict == "healthy"


def one_step_per_epoch(workers):
    startup_s, cpu_s = (0.06, 0.001) if workers else (0.001, 0.06)
    run = TorchRun(workers=max(1, workers), count=1, epochs=60, startup_s=startup_s, step_s=0.02, cpu_s=cpu_s)
    recording = run.recording()
    settings = recording.loaders[0].settings
    recording.loaders[0] = msgspec.structs.replace(
        recording.loaders[0],
        settings={**settings, "num_workers": msgspec.structs.replace(settings["num_workers"], in_force=workers)},
    )
    return recording


def test_a_new_iterator_for_every_step_is_named():
    diagnosis = diagnose(one_step_per_epoch(workers=4))
    assert diagnosis.findings[0].rule == "worker_startup"
    assert "next(iter(loader))" in diagnosis.findings[0].advice
    assert diagnosis.findings[0].gain > 2
    assert "first batch of an epoch" in diagnosis.sentence


def test_without_workers_the_waits_of_new_iterators_count_as_steps():
    diagnosis = diagnose(one_step_per_epoch(workers=0))
    assert diagnosis.findings[0].rule == "no_overlap"


def test_the_advice_for_crowded_cores_is_the_best_number_of_workers_by_the_model():
    crowded = TorchRun(cores=4, workers=16, cpu_s=0.04, step_s=0.02, main={"queue": 0.4, "cpu": 0.5}).recording()
    finding = next(finding for finding in diagnose(crowded).findings if finding.rule == "cpu_oversubscribed")
    assert finding.advice.startswith(("num_workers=3", "num_workers=4"))
    evidence = gather(crowded)[0]
    advised_workers = int(finding.advice[12])
    rate, advised_rate = (
        each.steady_rate for each in (evidence.workload, with_workers(evidence.workload, advised_workers))
    )
    assert advised_rate > rate
    assert 0.05 < finding.gain <= evidence.loop.cycle_s / evidence.contention.step_s.mean() - 1


def test_collections_and_cores_are_written_and_read_back():
    fetch = FetchLine(loader=0, batch=0, worker=0, at_s=0.0, fetch_s=1.0, gc_s=0.5)
    system = SystemLine(at_s=1.0, processes=(ProcessLoad(worker=0, cores=1),))
    for line in (fetch, system):
        assert msgspec.json.decode(msgspec.json.encode(line), type=type(line)) == line


# -- times that do not count ---------------------------------------------------------------------------------------


def test_collections_before_the_first_step_do_not_count():
    recording = TorchRun(workers=4, cpu_s=0.001, step_s=0.02).recording()
    steps = with_fields(recording.steps, at_s=lambda step: step.at_s + 60)
    collections = tuple(EventLine(what="gc", at_s=float(second), seconds=2.0) for second in range(3))
    assert diagnose(replace(recording, steps=steps, events=collections)).verdict == "healthy"


def test_loaders_used_side_by_side_share_the_time_of_the_run():
    recording = TorchRun(workers=4, cpu_s=0.15, step_s=0.01, cores=16).recording()
    second_steps = with_fields(recording.steps, loader=lambda _: 1)
    loaders = {**recording.loaders, 1: msgspec.structs.replace(recording.loaders[0], loader=1, dataset_size=7)}
    side_by_side = replace(recording, steps=(*recording.steps, *second_steps), loaders=loaders)
    alone_s = diagnose(recording).impact.run_s
    assert diagnose(side_by_side).impact.run_s == pytest.approx(alone_s, rel=0.02)


def test_device_times_that_were_not_read_do_not_count_as_0():
    recording = TorchRun(workers=4, cpu_s=0.001, step_s=0.02).recording()
    steps = with_fields(recording.steps, device_phases=lambda step: {"forward": 0.01} if step.batch % 8 == 0 else {})
    assert gather(replace(recording, steps=steps))[0].loop.device_s() == pytest.approx(0.01)
