"""What is proposed for a torch DataLoader, and what is left alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.model.edits import with_cores
from penstock.model.workload import Workload
from penstock.plan.predict import predict
from penstock.plan.profiles import profile_goal
from penstock.plan.proposal import propose
from penstock.plan.scenario import LoaderSettings, Scenario, TrainingContext, WorkerStartCost
from penstock.plan.setting_changes import MIN_GAIN, SETTING_CHANGES
from penstock.plan.storage_model import on_storage

MB = 1_000_000
LINUX = TrainingContext(platform="Linux 6.1 x86_64")
DICE = np.random.default_rng(7)
STRAGGLING = np.where(DICE.random(400) < 0.04, 0.4, 0.02)


def run(count=80, workers=4, *, step_s=0.01, cpu_s=0.0, latency_s=0.0, receive_s=0.0002, **others):
    columns = {"step_s": step_s, "receive_s": receive_s, "cpu_s": cpu_s, "latency_s": latency_s}
    who = np.arange(count) % workers if workers else np.full(count, -1)
    given = {"workers": workers, "prefetch": 2, "in_order": True, "cores": 16.0, "worker": who, **others}
    return Workload(**given, **{name: np.atleast_1d(values) for name, values in columns.items()})


def ask(workload, context=LINUX, profile="balanced", pinned=(), **more):
    """Of a loader set as the workload was."""
    given = {"num_workers": workload.workers, "prefetch_factor": workload.prefetch, "in_order": workload.in_order}
    return propose(workload, LoaderSettings(**{**given, **more}), context, profile, samples_per_batch=10, pinned=pinned)


def change(proposal, name):
    found = [each for each in proposal.changes if each.name == name]
    assert len(found) <= 1, "each setting once"
    return found[0] if found else None


# -- num_workers ---------------------------------------------------------------------------------------------------


def test_workers_that_cannot_keep_up_get_help_up_to_what_the_step_takes():
    found = ask(run(workers=1, cpu_s=0.08, step_s=0.02))
    more = change(found, "num_workers")
    assert more.then in (4, 5)
    assert more.gain == pytest.approx(3, rel=0.1)
    assert "samples/s" in more.reason
    assert found.kwargs["num_workers"] == more.then
    assert found.gain >= more.gain - 0.02


def test_strangers_on_the_cores_do_not_keep_it_from_more_workers():
    found = ask(run(workers=1, cpu_s=0.2, step_s=0.005, cores=16.0, competitors=1.0))
    assert change(found, "num_workers").then > 8


def test_a_loop_without_workers_gets_some():
    found = ask(run(workers=0, cpu_s=0.02, step_s=0.02))
    assert change(found, "num_workers").then in (1, 2)
    assert found.gain == pytest.approx(1.0, rel=0.1)


def test_no_more_workers_than_cores_have_use_for():
    found = ask(run(workers=1, cpu_s=0.5, step_s=0.001, cores=4.0))
    assert change(found, "num_workers").then in (4, 5)
    assert "the cores" in change(found, "num_workers").reason


def test_latency_takes_many_workers_because_waiting_costs_no_core():
    assert change(ask(run(workers=4, latency_s=0.4, cpu_s=0.001, step_s=0.02, cores=2.0)), "num_workers").then >= 18


def test_a_full_device_gets_no_more_readers():
    stored = on_storage(run(workers=4, cpu_s=0.005), ((1, 100e6, 0),), batch_bytes=10e6)
    assert ask(stored).changes == ()


def test_a_thrashing_disk_gets_fewer():
    stored = on_storage(run(workers=8, cpu_s=0.005), ((1, 100e6, 0), (2, 60e6, 0), (8, 30e6, 0)), batch_bytes=10e6)
    fewer = change(ask(stored), "num_workers")
    assert fewer.then == 1
    assert fewer.gain > 1.5


def test_tiny_samples_are_better_made_in_the_loop():
    found = ask(run(workers=4, cpu_s=0.0002, receive_s=0.002, step_s=0.002))
    assert change(found, "num_workers").then == 0
    assert "prefetch_factor" not in found.kwargs
    assert "persistent_workers" not in found.kwargs


def test_a_run_that_never_waits_is_left_alone_and_told_so():
    found = ask(run(workers=8, cpu_s=0.01, step_s=0.1))
    assert found.changes == ()
    assert any(note.startswith("num_workers: leave it at 8") for note in found.notes)
    assert found.kwargs["num_workers"] == 8


def test_a_pinned_setting_stays_and_the_loss_is_told():
    found = ask(run(workers=1, cpu_s=0.08, step_s=0.02), pinned={"num_workers"})
    assert found.changes == ()
    assert found.kwargs["num_workers"] == 1
    assert any("num_workers is pinned to 1" in note for note in found.notes)


def test_a_dataset_with_few_shards_has_nothing_to_give_to_more_workers():
    context = replace(LINUX, dataset_workers=2)
    assert change(ask(run(workers=2, cpu_s=0.2, step_s=0.02), context), "num_workers") is None


# -- memory --------------------------------------------------------------------------------------------------------


def tight(free, batch=50 * MB):
    return replace(LINUX, free_bytes=free, batch_bytes=batch, worker_bytes=200 * MB)


def test_nothing_is_proposed_that_does_not_fit():
    found = ask(run(workers=1, cpu_s=0.16, step_s=0.02), tight(2_000 * MB))
    assert 1 < change(found, "num_workers").then < 8
    assert found.need.total_bytes <= 1_000 * MB  # half of what is free


def test_settings_in_force_that_cannot_fit_are_said_and_mended_without_any_gain():
    found = ask(run(workers=16, prefetch=12, cpu_s=0.01, step_s=0.1), tight(8_000 * MB))
    assert any("cannot fit" in note for note in found.notes)
    assert change(found, "prefetch_factor").then == 2
    assert change(found, "num_workers").then < 16
    assert found.need.total_bytes <= 4_000 * MB
    assert found.gain > -0.05


def test_what_runs_already_may_go_on_though_it_takes_more_than_the_profile_would():
    found = ask(run(workers=4, cpu_s=0.01, step_s=0.1), tight(2_500 * MB))
    assert found.changes == ()


def test_memory_that_is_not_known_is_not_checked_and_told():
    assert any("not checked" in note for note in ask(run()).notes)
    assert ask(run()).need is None


def test_where_nothing_fits_that_is_said():
    found = ask(run(workers=4, cpu_s=0.1), tight(60 * MB))
    assert any("no number of workers fits" in note for note in found.notes)


def test_the_memory_profile_takes_fewer_workers_for_nothing_but_memory():
    spent = run(workers=8, prefetch=8, cpu_s=0.01, step_s=0.02)
    found = ask(spent, tight(64_000 * MB), "memory")
    assert change(found, "num_workers").then < 8
    assert found.kwargs.get("prefetch_factor", 2) == 2
    assert found.gain >= -0.12
    assert ask(spent, tight(64_000 * MB), "balanced").changes == ()


# -- prefetch_factor, in_order -------------------------------------------------------------------------------------


def test_prefetch_is_not_touched_where_batches_are_equal():
    assert change(ask(run(workers=4, prefetch=2, latency_s=0.1, step_s=0.02)), "prefetch_factor") is None


def test_prefetch_rides_over_batches_that_vary():
    dice = np.random.default_rng(5)
    uneven = run(400, 4, cpu_s=np.where(dice.random(400) < 0.06, 0.35, 0.02), step_s=0.02)
    deeper = change(ask(uneven, pinned={"num_workers"}, profile="speed"), "prefetch_factor")
    assert deeper.then > 2
    assert deeper.gain >= MIN_GAIN


def test_order_is_given_up_only_for_a_worker_that_lags_and_says_what_it_costs():
    lagging = run(80, 4, latency_s=np.where(np.arange(80) % 4 == 1, 0.4, 0.04), step_s=0.01)
    found = change(ask(lagging, pinned={"num_workers"}), "in_order")
    assert found.then is False
    assert found.gain > 0.5
    assert "order" in found.cost
    assert change(ask(run(workers=4, latency_s=0.4), pinned={"num_workers"}), "in_order") is None


def test_a_worker_that_lags_is_no_reason_for_more_of_them_unless_order_must_stay():
    lagging = run(80, 4, latency_s=np.where(np.arange(80) % 4 == 1, 0.4, 0.04), step_s=0.01)
    assert change(ask(lagging), "in_order").then is False
    assert change(ask(lagging, pinned={"in_order"}), "num_workers").then > 8


def test_order_is_not_given_up_where_torch_does_not_know_how():
    lagging = run(80, 4, latency_s=np.where(np.arange(80) % 4 == 1, 0.4, 0.04), step_s=0.01)
    assert change(ask(lagging, replace(LINUX, has_in_order=False)), "in_order") is None


# -- pin_memory, persistent_workers, context, threads --------------------------------------------------------------


def test_memory_is_pinned_only_with_a_gpu_and_for_copies_that_were_seen():
    busy = run(workers=4, cpu_s=0.001, step_s=0.02)
    pin = change(ask(busy, replace(LINUX, gpus=1, copy_s=0.008)), "pin_memory")
    assert pin.then is True
    assert pin.gain == pytest.approx(1 / (1 - 0.4 * (1 - 19 / 55)) - 1, rel=0.05)
    bound = change(ask(busy, replace(LINUX, gpus=1, copy_s=0.008, device_s=0.018)), "pin_memory")
    assert bound.gain == pytest.approx(0.02 / 0.018 - 1, rel=0.05)
    assert change(ask(busy, replace(LINUX, gpus=0, copy_s=0.008)), "pin_memory") is None
    assert change(ask(busy, replace(LINUX, gpus=1, copy_s=0.0)), "pin_memory") is None
    assert change(ask(busy, replace(LINUX, gpus=1, copy_s=0.008), pin_memory=True), "pin_memory") is None


def test_workers_persist_where_epochs_are_short_against_their_start():
    short = replace(LINUX, worker_start=WorkerStartCost(0.5), epoch_batches=100, epochs=10)
    found = ask(run(workers=4, cpu_s=0.01, step_s=0.02), short)
    stay = change(found, "persistent_workers")
    assert stay.gain == pytest.approx(4.0 / (2.2) - 1, rel=0.05)  # 2 s of 4 s go, but for a tenth
    assert found.kwargs["persistent_workers"] is True
    assert ask(run(workers=4, cpu_s=0.01, step_s=0.02), replace(short, epoch_batches=100_000)).changes == ()


def test_the_first_workers_of_a_loop_persist_where_starting_them_costs():
    short = replace(LINUX, worker_start=WorkerStartCost(0.5), epoch_batches=200, epochs=10)
    found = ask(run(workers=0, cpu_s=0.05, step_s=0.02), short)
    assert found.kwargs["num_workers"] > 0
    assert change(found, "persistent_workers").then is True


def test_a_dear_start_means_fewer_workers_where_they_may_not_persist():
    dear = replace(LINUX, platform="Windows 11 AMD64", worker_start=WorkerStartCost(3.0), epoch_batches=300, epochs=10)
    slow = run(workers=1, cpu_s=0.16, step_s=0.02)
    free, held = (ask(slow, dear, pinned=pinned).kwargs["num_workers"] for pinned in ((), {"persistent_workers"}))
    assert held < free


def test_fork_is_proposed_on_linux_without_a_gpu_where_workers_may_not_persist():
    context = replace(LINUX, worker_start=WorkerStartCost(0.5), epoch_batches=100)
    spawned = {"pinned": {"persistent_workers"}, "multiprocessing_context": "spawn"}
    busy = run(workers=4, cpu_s=0.03, step_s=0.02)
    found = ask(busy, context, **spawned)
    assert change(found, "multiprocessing_context").then == "fork"
    assert found.kwargs["multiprocessing_context"] == "fork"
    assert change(ask(busy, replace(context, gpus=1), **spawned), "multiprocessing_context") is None
    assert change(ask(busy, replace(context, platform="Windows 11"), **spawned), "multiprocessing_context") is None
    assert change(ask(busy, context, multiprocessing_context="spawn"), "multiprocessing_context") is None


def test_one_thread_in_each_worker_where_they_crowd_the_cores():
    def uncrowded(workload):
        return with_cores(workload, workload.cores * 2)

    crowded = run(workers=8, cpu_s=0.1, step_s=0.001, cores=4.0)
    found = ask(crowded, replace(LINUX, threads_per_worker=3.2, single_thread_remedy=uncrowded))
    threads = change(found, "worker_threads")
    assert (threads.now, threads.then) == (3.2, 1)
    assert threads.gain > 0.5
    assert found.kwargs["worker_threads"] == 1
    assert change(ask(crowded), "worker_threads") is None


# -- what always holds ---------------------------------------------------------------------------------------------


def test_kwargs_are_those_that_torch_takes_together():
    torch_data = pytest.importorskip("torch.utils.data")
    for workload in (
        run(workers=0, cpu_s=0.02, step_s=0.02),
        run(workers=4, cpu_s=0.0002, receive_s=0.002, step_s=0.002),
    ):
        kwargs = ask(workload).kwargs
        assert torch_data.DataLoader(range(8), **kwargs).num_workers == kwargs["num_workers"]


def test_gains_count_from_what_was_measured_where_the_model_says_less():
    slow = run(workers=1, cpu_s=0.04, step_s=0.02)
    given = LoaderSettings(num_workers=1)
    believed, corrected = (propose(slow, given, LINUX, measured_batches_s=rate).gain for rate in (0.0, 40.0))
    assert believed == pytest.approx(1.0, rel=0.1)
    assert corrected == pytest.approx(0.24, abs=0.03)


def test_a_model_that_has_the_run_too_slow_has_it_too_slow_with_other_settings_as_well():
    """Two workers on two cores beside a loop that computes: less crowded than the model thinks."""
    crowded = run(workers=2, cpu_s=0.012, step_s=0.018, step_cpu_s=np.array([0.018]), cores=2.0, competitors=0.5)
    said = predict(crowded).batches_s
    measured = 1.1 * said
    now = Scenario(
        workload=crowded,
        settings=LoaderSettings(num_workers=2),
        context=LINUX,
        goal=profile_goal("balanced"),
        measured_batches_s=measured,
    )
    same = now.with_settings(num_workers=2)
    assert same.batches_s == pytest.approx(measured)
    assert now.with_settings(num_workers=0).batches_s <= predict(crowded.replace(workers=0)).bounds[0].rate


def test_a_profile_of_another_name_is_refused():
    with pytest.raises(SettingError, match="not known"):
        ask(run(), profile="fast")


def test_every_knob_says_what_it_does():
    assert all(knob.__doc__ for knob in SETTING_CHANGES)


seconds = st.floats(0.001, 0.2)


@settings(max_examples=25, deadline=None)
@given(
    st.builds(
        run,
        st.just(40),
        st.integers(0, 8),
        step_s=st.floats(0.001, 0.1),
        cpu_s=seconds,
        latency_s=seconds,
        cores=st.sampled_from([1.0, 2.0, 8.0]),
        prefetch=st.integers(1, 12),
    ),
    st.sampled_from([300 * MB, 3_000 * MB, 300_000 * MB]),
    st.sampled_from(["balanced", "speed", "memory"]),
)
def test_whatever_is_proposed_fits_and_gains(workload, free, profile):
    found = ask(workload, tight(free), profile)
    for each in found.changes:
        assert each.reason
        assert each.now != each.then
        for_memory = profile == "memory" or found.now.overflows
        assert each.gain >= MIN_GAIN or for_memory, each
    if found.changes and any(each.name in ("num_workers", "prefetch_factor") for each in found.changes):
        assert not found.then.overflows or found.now.overflows
    if profile != "memory" and not found.now.overflows:
        assert found.gain >= 0
