"""Causes told from their look-alikes by how they come about: runs of which a single fact was misread once."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.made_recordings import Made

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

DICE = np.random.default_rng(3)


def changed(lines, **how):
    """Each line with these fields made from it."""
    return tuple(msgspec.structs.replace(line, **{name: make(line) for name, make in how.items()}) for line in lines)


def with_processes(recording, main, worker):
    """The system's looks, with these numbers for the main process and for each worker."""
    workers = int(recording.loaders[0].settings["num_workers"].in_force)
    processes = (ProcessLoad(**main), *(ProcessLoad(loader=0, worker=at, **worker) for at in range(workers)))
    return replace(recording, system=changed(recording.system, processes=lambda _: processes))


def first(recording):
    found = diagnose(recording).findings
    return found[0] if found else None


# -- a worker without a core --------------------------------------------------------------------------------------


def starved():
    """Workers that share one core of two: the loop's batch is at hand, and taking it waits for the worker."""
    made = Made(workers=4, cores=1, cpu_s=0.05, step_s=0.015, step_cpu=0.05).recording()
    made = replace(
        made,
        run=msgspec.structs.replace(made.run, machine=msgspec.structs.replace(made.run.machine, usable_cores=2)),
        steps=changed(
            made.steps,
            idle_s=lambda _: 0.0,
            ready=lambda _: 1,
            wait_s=lambda _: 0.035,
            at_s=lambda step: step.batch * 0.05,
        ),
        fetches=changed(made.fetches, queue_s=lambda fetch: fetch.fetch_s - fetch.cpu_s),
    )
    return with_processes(
        made, {"cpu": 0.05, "thread_cpu": 0.05, "cores": 2}, {"cpu": 0.24, "thread_cpu": 0.23, "cores": 1}
    )


def test_workers_held_on_one_core_are_named_with_the_cores_they_may_use():
    finding = first(starved())
    assert finding.rule == "cpu_oversubscribed"
    assert "1 of 2 cores" in finding.summary
    assert "affinity" in finding.advice
    assert 0.5 < finding.gain < 1.2  # twice the cores, less what the loop needs


def test_taking_a_batch_costs_no_more_than_the_loop_computes():
    evidence = gather(starved())[0]
    assert mean(evidence.loop.wait_s) > 0.02
    assert evidence.ipc.receive_s == pytest.approx(0.05 * evidence.loop.cycle_s)
    assert evidence.starved_share > 0.5


def test_taking_a_batch_is_long_where_another_thread_holds_the_interpreter():
    held = with_processes(starved(), {"cpu": 1.0, "thread_cpu": 0.05}, {"cpu": 0.24})
    assert gather(held)[0].ipc.receive_s > 0.02


# -- threads of a worker's own ------------------------------------------------------------------------------------


def waiting_for_threads(cpu, states, functions):
    """Workers whose own thread waits while others of theirs use so many cores each."""
    made = Made(workers=4, cores=2, cpu_s=0.008, latency_s=0.25, step_s=0.012).recording()
    looks = StackSamplesLine(loader=0, worker=0, at_s=1.0, samples=100, states=states, functions=functions)
    return with_processes(
        replace(made, stack_samples=(looks,)), {"cpu": 0.1, "thread_cpu": 0.1}, {"cpu": cpu, "thread_cpu": 0.03}
    )


def test_threads_that_compute_in_workers_are_decoding_and_no_lock():
    recording = waiting_for_threads(0.47, {"running": 60, "lock": 40}, {"threading:Condition.wait": 90})
    finding = first(recording)
    assert finding.rule == "decode_bound"
    assert finding.gain > 2


def test_threads_that_read_for_a_worker_are_no_lock_between_workers():
    recording = waiting_for_threads(0.03, {"running": 20, "lock": 80}, {"concurrent.futures._base:Future.result": 80})
    assert [finding.rule for finding in diagnose(recording).findings] == ["latency_bound"]


def test_a_librarys_threads_that_are_waited_for_are_no_lock_between_workers():
    recording = waiting_for_threads(0.25, {"running": 70, "lock": 30}, {"__main__:Data.__getitem__": 95})
    rejected = {each.rule: each.why for each in diagnose(recording).rejected}
    assert "threads of their own" in rejected["lock_contention"]


def test_a_lock_between_processes_stays_one():
    held = waiting_for_threads(0.03, {"running": 20, "lock": 80}, {"multiprocessing.synchronize:Lock.__enter__": 80})
    assert first(held).rule == "lock_contention"


# -- the garbage collector in workers -----------------------------------------------------------------------------


def collecting(gc_s):
    """Some batches compute twenty times as long, so many seconds of it in the collector."""
    slow = np.arange(400) % 25 == 4
    made = Made(workers=4, count=400, cores=16, cpu_s=np.where(slow, 0.4, 0.02), step_s=0.01).recording()
    return replace(made, fetches=changed(made.fetches, gc_s=lambda fetch: gc_s if fetch.cpu_s > 0.1 else 0.0))


def test_collections_in_workers_are_named_and_not_taken_for_slow_samples():
    finding = first(collecting(0.38))
    assert finding.rule == "gc_pauses"
    assert "16 of 400 batches" in finding.evidence[0]
    assert "worker_init_fn" in finding.advice


def test_slow_samples_stay_slow_samples_where_the_collector_took_little():
    assert first(collecting(0.001)).rule == "straggler_samples"


def test_without_collections_a_worker_answers_at_once_who_hands_a_batch_over():
    made = collecting(0.38)
    late = changed(made.steps, idle_s=lambda step: step.wait_s - (0.001 if step.batch % 3 == 0 else 0.012))
    held = replace(made, steps=tuple(step for step in late if step.idle_s >= 0))
    evidence = gather(held)[0]
    assert evidence.ipc.receive_cpu_s == pytest.approx(0.012, rel=0.1)
    assert evidence.ipc.undisturbed_receive_cpu_s == pytest.approx(0.001, rel=0.1)
    cured = all_rules()["gc_pauses"](evidence).remedy(evidence.workload)
    assert cured.receive_s.max() == evidence.ipc.undisturbed_receive_cpu_s < evidence.workload.receive_s.min()


# -- what handing over costs the worker, and what cores are wanted at once -----------------------------------------


def test_what_workers_compute_beside_their_fetches_is_handing_over_up_to_what_taking_costs():
    made = Made(workers=2, cores=2, cpu_s=0.02, step_s=0.012, receive_s=0.002).recording()
    cycle_s = gather(made)[0].loop.cycle_s

    def beside(seconds):
        cpu = (0.02 + seconds) / 2 / cycle_s
        return gather(with_processes(made, {"cpu": 0.4, "thread_cpu": 0.4}, {"cpu": cpu, "thread_cpu": cpu}))[0]

    assert beside(0.001).ipc.send_cpu_s == pytest.approx(0.001, rel=0.01)
    assert beside(0.1).ipc.send_cpu_s == beside(0.1).ipc.receive_cpu_s > 0
    assert beside(-0.01).ipc.send_cpu_s == 0
    assert beside(0.001).workload.cpu_s.mean() == pytest.approx(0.021, rel=0.01)


def taken_in_pairs():
    """Every other wait takes two pickled batches, and the next finds its own at hand."""
    made = Made(workers=2, cores=4, cpu_s=0.001, step_s=0.008).recording()

    def wait(step):
        return 0.034 if step.batch % 2 else 0.0002

    steps = changed(made.steps, wait_s=wait, idle_s=lambda step: 0.006 if step.batch % 2 else 0.0, ready=lambda _: 1)
    return with_processes(
        replace(made, steps=steps), {"cpu": 0.62, "thread_cpu": 0.62}, {"cpu": 0.3, "thread_cpu": 0.03}
    )


def test_what_the_loop_computes_beyond_its_steps_it_does_to_take_batches():
    recording = taken_in_pairs()
    evidence = gather(recording)[0]
    assert evidence.ipc.receive_s == pytest.approx(0.62 * evidence.loop.cycle_s - 0.008)
    assert first(recording).rule == "ipc_copy"
    assert first(recording).gain > 1


def test_a_cure_that_changes_nothing_wins_nothing_of_what_the_model_cannot_explain():
    unexplained = replace(taken_in_pairs(), system=())
    rare = changed(unexplained.fetches, cpu_s=lambda fetch: 0.02 if fetch.batch % 67 == 0 else 0.001)
    rare = changed(rare, fetch_s=lambda fetch: fetch.cpu_s)
    recording = replace(unexplained, fetches=rare)
    evidence = gather(recording)[0]
    assert evidence.workload.steady_rate * evidence.loop.cycle_s > 2
    assert diagnose(recording).findings == ()


def crowding(**main):
    """Two workers decode on two cores, and the loop waits: for a batch, and in line for a core."""
    made = Made(workers=2, cores=2, cpu_s=0.0148, step_s=0.008).recording()
    steps = changed(made.steps, wait_s=lambda _: 0.0035, idle_s=lambda _: 0.002, at_s=lambda step: step.batch * 0.0115)
    return with_processes(
        replace(made, steps=steps), {"cpu": 0.2, "thread_cpu": 0.2, **main}, {"cpu": 0.7, "thread_cpu": 0.7}
    )


def test_decoding_that_leaves_the_loop_in_line_for_a_core_is_the_bottleneck_though_some_core_is_idle_now_and_then():
    recording = crowding(queue=0.2)
    assert gather(recording)[0].machine.free_cores > 0.3
    finding = first(recording)
    assert finding.rule == "decode_bound"
    assert finding.confidence < 0.6


def test_where_strangers_take_the_cores_the_loop_is_not_crowded_out_by_its_own_workers():
    recording = crowding(queue=0.2)
    recording = replace(recording, system=changed(recording.system, others_cpu=lambda _: 0.5))
    assert "decode_bound" not in [finding.rule for finding in diagnose(recording).findings]


def test_the_first_start_of_a_run_is_no_loss_that_persistent_workers_could_save():
    made = Made(workers=4, count=20, passes=10, startup_s=0.5, step_s=0.02, cpu_s=0.001).recording()
    finding = first(made)
    assert finding.rule == "worker_startup"
    steps_s = sum(step.step_s + step.wait_s for step in made.steps) - 10 * 0.5
    assert finding.gain == pytest.approx(9 * 0.5 / steps_s, rel=0.05)


# -- slow for a while, and slow now and then ----------------------------------------------------------------------


def latent(latency_s):
    made = Made(workers=4, count=400, cpu_s=0.002, latency_s=latency_s, step_s=0.01, cores=16, states={"sleep": 80})
    return made.recording()


def test_a_run_that_waited_at_first_only_is_a_change_and_no_tail():
    finding = first(latent(np.where(np.arange(400) < 120, 0.3, 0.001)))
    assert finding.rule == "regime_change"
    assert finding.summary.startswith("Until step 1")
    assert "waiting for data" in finding.summary


def test_a_third_of_the_batches_slow_by_chance_is_still_a_tail():
    assert first(latent(np.where(DICE.random(400) < 0.3, 0.25, 0.001))).rule == "tail_latency"


@pytest.mark.parametrize(("together", "rule"), [(1.05, "storage_bandwidth"), (3.9, "tail_latency")])
def test_late_reads_are_a_tail_only_where_another_reader_does_not_make_them_late(together, rule):
    made = Made(
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
    assert first(made.recording()).rule == rule


def test_a_step_that_was_slow_at_first_by_itself_is_no_finding():
    made = Made(workers=4, cpu_s=0.001).recording()
    slow = {step.batch for step in made.steps if step.batch < 60}
    steps = changed(made.steps, step_s=lambda step: 0.2 if step.batch in slow else 0.02, wait_s=lambda _: 0.0003)
    assert diagnose(replace(made, steps=steps)).verdict == "healthy"


# -- steps that nobody looked at ----------------------------------------------------------------------------------


def seldom_looked(count=320, first_looked=40):
    """One step in five takes 80 ms more outside all phases; after the first few only short ones were looked at."""
    made = Made(workers=4, count=count, cpu_s=0.001, step_s=0.015).recording()

    def phases(step):
        return {"forward": 0.013, "backward": 0.001} if profiled(step) else {}

    def profiled(step):
        return step.batch < first_looked or step.batch % 32 == 1

    steps = changed(
        made.steps,
        step_s=lambda step: 0.095 if step.batch % 5 == 0 else 0.015,
        wait_s=lambda _: 0.0003,
        profiled=profiled,
        phases=phases,
    )
    return replace(made, steps=steps)


def test_long_steps_that_nobody_looked_at_count_as_those_do_that_were():
    evidence = gather(seldom_looked())[0]
    assert evidence.loop.outside_phases_s == pytest.approx(0.2 * 0.081 + 0.8 * 0.001, rel=0.05)
    assert mean(evidence.loop.phase_s("forward")) == pytest.approx(0.013, rel=0.05)
    assert first(seldom_looked()).rule == "main_process_python"


# -- passes within steps, and passes of one step ------------------------------------------------------------------


def validating(left_early):
    """Every fortieth step holds a pass over another loader, of which the end is told or not."""
    made = Made(workers=4, cpu_s=0.001, step_s=0.015, phases={"forward": 0.013}).recording()
    steps, passes, more_s = [], list(made.epochs), 0.0
    for step in made.steps:
        at_s = step.at_s + more_s
        if step.batch % 40 == 39:
            begin = at_s + step.wait_s + 0.015
            passes.append(EpochStartLine(loader=1, epoch=step.batch, at_s=begin))
            theirs = [
                StepLine(loader=1, epoch=step.batch, batch=k, at_s=begin + k * 0.02, wait_s=0.001, step_s=0.019)
                for k in range(10)
            ]
            steps += [*theirs[:-1], msgspec.structs.replace(theirs[-1], step_s=0.5 if left_early else 0.019)]
            more_s += 0.2
            step = msgspec.structs.replace(step, step_s=0.215)
        steps.append(msgspec.structs.replace(step, at_s=at_s))
    loaders = {**made.loaders, 1: msgspec.structs.replace(made.loaders[0], loader=1, dataset_size=500)}
    return replace(made, loaders=loaders, steps=tuple(steps), epochs=tuple(passes))


@pytest.mark.parametrize("left_early", [True, False])
def test_a_pass_over_another_loader_within_a_step_is_a_pause_whether_or_not_its_end_was_told(left_early):
    recording = validating(left_early)
    evidence = next(evidence for evidence in gather(recording) if evidence.loader.loader == 0)
    assert evidence.loop.pause_s[evidence.loop.pause_s > 0] == pytest.approx(0.2, abs=0.01)
    assert np.median(evidence.loop.busy_s[evidence.loop.pause_s > 0]) == pytest.approx(0.015, abs=0.01)
    assert diagnose(recording).verdict == "healthy"


def one_step_a_pass(workers):
    startup_s, cpu_s = (0.06, 0.001) if workers else (0.001, 0.06)
    made = Made(workers=max(1, workers), count=1, passes=60, startup_s=startup_s, step_s=0.02, cpu_s=cpu_s)
    recording = made.recording()
    settings = recording.loaders[0].settings
    recording.loaders[0] = msgspec.structs.replace(
        recording.loaders[0],
        settings={**settings, "num_workers": msgspec.structs.replace(settings["num_workers"], in_force=workers)},
    )
    return recording


def test_a_new_iterator_for_every_step_is_named():
    diagnosis = diagnose(one_step_a_pass(workers=4))
    assert diagnosis.findings[0].rule == "worker_startup"
    assert "next(iter(loader))" in diagnosis.findings[0].advice
    assert diagnosis.findings[0].gain > 2
    assert "first batch of an epoch" in diagnosis.sentence


def test_without_workers_a_new_iterator_starts_nothing_and_its_waits_are_steps():
    diagnosis = diagnose(one_step_a_pass(workers=0))
    assert diagnosis.findings[0].rule == "no_overlap"


def test_the_advice_for_crowded_cores_is_the_number_of_workers_that_the_model_finds_best():
    crowded = Made(cores=4, workers=16, cpu_s=0.04, step_s=0.02, main={"queue": 0.4, "cpu": 0.5}).recording()
    finding = next(each for each in diagnose(crowded).findings if each.rule == "cpu_oversubscribed")
    assert finding.advice.startswith(("num_workers=3", "num_workers=4"))
    evidence = gather(crowded)[0]
    fewer = with_workers(evidence.workload, int(finding.advice[12])).steady_rate * evidence.loop.cycle_s
    assert finding.gain == pytest.approx(fewer - 1, abs=0.02)  # and no more: nothing else is proposed


def test_what_the_recorder_writes_of_collections_and_cores_is_read_back():
    fetch = FetchLine(loader=0, batch=0, worker=0, at_s=0.0, fetch_s=1.0, gc_s=0.5)
    system = SystemLine(at_s=1.0, processes=(ProcessLoad(worker=0, cores=1),))
    for line in (fetch, system):
        assert msgspec.json.decode(msgspec.json.encode(line), type=type(line)) == line


# -- what belongs to the run, and to whom -------------------------------------------------------------------------


def test_collections_before_the_first_step_are_not_the_loops():
    made = Made(workers=4, cpu_s=0.001, step_s=0.02).recording()
    steps = changed(made.steps, at_s=lambda step: step.at_s + 60)
    early = tuple(EventLine(what="gc", at_s=float(at), seconds=2.0) for at in range(3))
    assert diagnose(replace(made, steps=steps, events=early)).verdict == "healthy"


def test_loaders_iterated_over_side_by_side_share_the_time_of_the_run():
    made = Made(workers=4, cpu_s=0.15, step_s=0.01, cores=16).recording()
    beside = changed(made.steps, loader=lambda _: 1)
    loaders = {**made.loaders, 1: msgspec.structs.replace(made.loaders[0], loader=1, dataset_size=7)}
    twice = replace(made, steps=(*made.steps, *beside), loaders=loaders)
    alone_s = diagnose(made).impact.run_s
    assert diagnose(twice).impact.run_s == pytest.approx(alone_s, rel=0.02)


def test_steps_whose_time_on_the_device_was_not_read_do_not_count_as_none():
    made = Made(workers=4, cpu_s=0.001, step_s=0.02).recording()
    steps = changed(made.steps, device_phases=lambda step: {"forward": 0.01} if step.batch % 8 == 0 else {})
    assert gather(replace(made, steps=steps))[0].loop.device_s() == pytest.approx(0.01)
