"""Proposals of settings for a torch DataLoader: which settings are changed, and which are left alone."""

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
from penstock.plan.setting_changes import MIN_GAIN
from penstock.plan.storage_model import on_storage

MB = 1_000_000
LINUX = TrainingContext(platform="Linux 6.1 x86_64")


def workload_of(count=80, workers=4, *, step_s=0.01, cpu_s=0.0, latency_s=0.0, receive_s=0.0002, **others):
    columns = {"step_s": step_s, "receive_s": receive_s, "cpu_s": cpu_s, "latency_s": latency_s}
    worker = np.arange(count) % workers if workers else np.full(count, -1)
    settings = {"workers": workers, "prefetch": 2, "in_order": True, "cores": 16.0, "worker": worker, **others}
    return Workload(**settings, **{name: np.atleast_1d(values) for name, values in columns.items()})


def proposal_for(workload, context=LINUX, profile="balanced", pinned=(), **more):
    """Return the proposal for a loader with the settings of the workload, and with `more`."""
    current = {"num_workers": workload.workers, "prefetch_factor": workload.prefetch, "in_order": workload.in_order}
    return propose(
        workload, LoaderSettings(**{**current, **more}), context, profile, samples_per_batch=10, pinned=pinned
    )


def change(proposal, name):
    changes = [change for change in proposal.changes if change.name == name]
    assert len(changes) <= 1, "a setting is changed twice"
    return changes[0] if changes else None


# -- num_workers ---------------------------------------------------------------------------------------------------


def test_workers_are_added_until_they_keep_up_with_the_step():
    found = proposal_for(workload_of(workers=1, cpu_s=0.08, step_s=0.02))
    workers = change(found, "num_workers")
    assert workers.then in (4, 5)
    assert workers.gain == pytest.approx(3, rel=0.1)
    assert "samples/s" in workers.reason
    assert found.kwargs["num_workers"] == workers.then
    assert found.gain >= workers.gain - 0.02


def test_more_workers_are_proposed_beside_other_programs():
    found = proposal_for(workload_of(workers=1, cpu_s=0.2, step_s=0.005, cores=16.0, competitors=1.0))
    assert change(found, "num_workers").then > 8


def test_workers_are_proposed_for_a_loader_without_any():
    found = proposal_for(workload_of(workers=0, cpu_s=0.02, step_s=0.02))
    assert change(found, "num_workers").then in (1, 2)
    assert found.gain == pytest.approx(1.0, rel=0.1)


def test_workers_that_compute_are_limited_by_the_cores():
    found = proposal_for(workload_of(workers=1, cpu_s=0.5, step_s=0.001, cores=4.0))
    assert change(found, "num_workers").then in (4, 5)
    assert "the cores" in change(found, "num_workers").reason


def test_latency_leads_to_many_workers_because_waiting_needs_no_core():
    assert (
        change(
            proposal_for(workload_of(workers=4, latency_s=0.4, cpu_s=0.001, step_s=0.02, cores=2.0)), "num_workers"
        ).then
        >= 18
    )


def test_a_disk_at_its_bandwidth_gets_no_changes():
    stored = on_storage(workload_of(workers=4, cpu_s=0.005), ((1, 100e6, 0),), batch_bytes=10e6)
    assert proposal_for(stored).changes == ()


def test_a_thrashing_disk_leads_to_fewer_workers():
    stored = on_storage(
        workload_of(workers=8, cpu_s=0.005), ((1, 100e6, 0), (2, 60e6, 0), (8, 30e6, 0)), batch_bytes=10e6
    )
    fewer = change(proposal_for(stored), "num_workers")
    assert fewer.then == 1
    assert fewer.gain > 1.5


def test_no_workers_are_proposed_if_their_transfer_costs_more_than_the_samples():
    found = proposal_for(workload_of(workers=4, cpu_s=0.0002, receive_s=0.002, step_s=0.002))
    assert change(found, "num_workers").then == 0
    assert "prefetch_factor" not in found.kwargs
    assert "persistent_workers" not in found.kwargs


def test_a_run_that_never_waits_gets_a_note_instead_of_a_change():
    found = proposal_for(workload_of(workers=8, cpu_s=0.01, step_s=0.1))
    assert found.changes == ()
    assert any(note.startswith("num_workers: leave it at 8") for note in found.notes)
    assert found.kwargs["num_workers"] == 8


def test_a_pinned_setting_stays_and_is_noted():
    found = proposal_for(workload_of(workers=1, cpu_s=0.08, step_s=0.02), pinned={"num_workers"})
    assert found.changes == ()
    assert found.kwargs["num_workers"] == 1
    assert any("num_workers is pinned to 1" in note for note in found.notes)


def test_the_shards_of_a_dataset_limit_the_workers():
    context = replace(LINUX, dataset_workers=2)
    assert change(proposal_for(workload_of(workers=2, cpu_s=0.2, step_s=0.02), context), "num_workers") is None


# -- memory --------------------------------------------------------------------------------------------------------


def with_memory(free_bytes):
    return replace(LINUX, free_bytes=free_bytes, batch_bytes=50 * MB, worker_bytes=200 * MB)


def test_proposed_workers_fit_into_memory():
    found = proposal_for(workload_of(workers=1, cpu_s=0.16, step_s=0.02), with_memory(2_000 * MB))
    assert 1 < change(found, "num_workers").then < 8
    assert found.need.total_bytes <= 1_000 * MB  # half of what is free


def test_settings_that_cannot_fit_are_noted_and_reduced_without_a_gain():
    found = proposal_for(workload_of(workers=16, prefetch=12, cpu_s=0.01, step_s=0.1), with_memory(8_000 * MB))
    assert any("cannot fit" in note for note in found.notes)
    assert change(found, "prefetch_factor").then == 2
    assert change(found, "num_workers").then < 16
    assert found.need.total_bytes <= 4_000 * MB
    assert found.gain > -0.05


def test_current_settings_that_fit_may_exceed_the_memory_of_the_profile():
    found = proposal_for(workload_of(workers=4, cpu_s=0.01, step_s=0.1), with_memory(2_500 * MB))
    assert found.changes == ()


def test_unknown_memory_is_not_checked_and_noted():
    assert any("not checked" in note for note in proposal_for(workload_of()).notes)
    assert proposal_for(workload_of()).need is None


def test_a_note_says_that_no_number_of_workers_fits():
    found = proposal_for(workload_of(workers=4, cpu_s=0.1), with_memory(60 * MB))
    assert any("no number of workers fits" in note for note in found.notes)


def test_only_the_memory_profile_removes_workers_to_save_memory():
    wasteful = workload_of(workers=8, prefetch=8, cpu_s=0.01, step_s=0.02)
    found = proposal_for(wasteful, with_memory(64_000 * MB), "memory")
    assert change(found, "num_workers").then < 8
    assert found.kwargs.get("prefetch_factor", 2) == 2
    assert found.gain >= -0.12
    assert proposal_for(wasteful, with_memory(64_000 * MB), "balanced").changes == ()


# -- prefetch_factor, in_order -------------------------------------------------------------------------------------


def test_prefetch_is_not_changed_for_equal_batches():
    assert (
        change(proposal_for(workload_of(workers=4, prefetch=2, latency_s=0.1, step_s=0.02)), "prefetch_factor") is None
    )


def test_more_prefetch_is_proposed_for_uneven_batches():
    slow = np.random.default_rng(5).random(400) < 0.06
    uneven = workload_of(400, 4, cpu_s=np.where(slow, 0.35, 0.02), step_s=0.02)
    deeper = change(proposal_for(uneven, pinned={"num_workers"}, profile="speed"), "prefetch_factor")
    assert deeper.then > 2
    assert deeper.gain >= MIN_GAIN


def test_in_order_is_switched_off_only_for_a_lagging_worker_and_the_cost_is_named():
    lagging = workload_of(80, 4, latency_s=np.where(np.arange(80) % 4 == 1, 0.4, 0.04), step_s=0.01)
    found = change(proposal_for(lagging, pinned={"num_workers"}), "in_order")
    assert found.then is False
    assert found.gain > 0.5
    assert "order" in found.cost
    assert change(proposal_for(workload_of(workers=4, latency_s=0.4), pinned={"num_workers"}), "in_order") is None


def test_a_lagging_worker_leads_to_more_workers_only_if_in_order_is_pinned():
    lagging = workload_of(80, 4, latency_s=np.where(np.arange(80) % 4 == 1, 0.4, 0.04), step_s=0.01)
    assert change(proposal_for(lagging), "in_order").then is False
    assert change(proposal_for(lagging, pinned={"in_order"}), "num_workers").then > 8


def test_in_order_is_not_changed_if_torch_does_not_have_it():
    lagging = workload_of(80, 4, latency_s=np.where(np.arange(80) % 4 == 1, 0.4, 0.04), step_s=0.01)
    assert change(proposal_for(lagging, replace(LINUX, has_in_order=False)), "in_order") is None


# -- pin_memory, persistent_workers, multiprocessing_context, threads ----------------------------------------------


def test_pin_memory_is_proposed_only_with_a_gpu_and_recorded_copies():
    busy = workload_of(workers=4, cpu_s=0.001, step_s=0.02)
    pin = change(proposal_for(busy, replace(LINUX, gpus=1, copy_s=0.008)), "pin_memory")
    assert pin.then is True
    assert pin.gain == pytest.approx(1 / (1 - 0.4 * (1 - 19 / 55)) - 1, rel=0.05)
    device_bound = change(proposal_for(busy, replace(LINUX, gpus=1, copy_s=0.008, device_s=0.018)), "pin_memory")
    assert device_bound.gain == pytest.approx(0.02 / 0.018 - 1, rel=0.05)
    assert change(proposal_for(busy, replace(LINUX, gpus=0, copy_s=0.008)), "pin_memory") is None
    assert change(proposal_for(busy, replace(LINUX, gpus=1, copy_s=0.0)), "pin_memory") is None
    assert change(proposal_for(busy, replace(LINUX, gpus=1, copy_s=0.008), pin_memory=True), "pin_memory") is None


def test_persistent_workers_are_proposed_if_epochs_are_short_relative_to_their_start():
    short = replace(LINUX, worker_start=WorkerStartCost(0.5), epoch_batches=100, epochs=10)
    found = proposal_for(workload_of(workers=4, cpu_s=0.01, step_s=0.02), short)
    persistent = change(found, "persistent_workers")
    assert persistent.gain == pytest.approx(4.0 / 2.2 - 1, rel=0.05)  # of the start's 2 s per epoch a tenth remains
    assert found.kwargs["persistent_workers"] is True
    assert (
        proposal_for(workload_of(workers=4, cpu_s=0.01, step_s=0.02), replace(short, epoch_batches=100_000)).changes
        == ()
    )


def test_workers_added_to_a_loader_without_any_persist_if_starting_them_is_slow():
    short = replace(LINUX, worker_start=WorkerStartCost(0.5), epoch_batches=200, epochs=10)
    found = proposal_for(workload_of(workers=0, cpu_s=0.05, step_s=0.02), short)
    assert found.kwargs["num_workers"] > 0
    assert change(found, "persistent_workers").then is True


def test_a_slow_start_leads_to_fewer_workers_if_they_may_not_persist():
    slow_start = replace(
        LINUX, platform="Windows 11 AMD64", worker_start=WorkerStartCost(3.0), epoch_batches=300, epochs=10
    )
    slow = workload_of(workers=1, cpu_s=0.16, step_s=0.02)
    persistent, restarted = (
        proposal_for(slow, slow_start, pinned=pinned).kwargs["num_workers"] for pinned in ((), {"persistent_workers"})
    )
    assert restarted < persistent


def test_fork_is_proposed_on_linux_without_a_gpu_if_workers_may_not_persist():
    context = replace(LINUX, worker_start=WorkerStartCost(0.5), epoch_batches=100)
    spawned = {"pinned": {"persistent_workers"}, "multiprocessing_context": "spawn"}
    busy = workload_of(workers=4, cpu_s=0.03, step_s=0.02)
    found = proposal_for(busy, context, **spawned)
    assert change(found, "multiprocessing_context").then == "fork"
    assert found.kwargs["multiprocessing_context"] == "fork"
    assert change(proposal_for(busy, replace(context, gpus=1), **spawned), "multiprocessing_context") is None
    assert (
        change(proposal_for(busy, replace(context, platform="Windows 11"), **spawned), "multiprocessing_context")
        is None
    )
    assert change(proposal_for(busy, context, multiprocessing_context="spawn"), "multiprocessing_context") is None


def test_one_thread_per_worker_is_proposed_if_threads_crowd_the_cores():
    def uncrowded(workload):
        return with_cores(workload, workload.cores * 2)

    crowded = workload_of(workers=8, cpu_s=0.1, step_s=0.001, cores=4.0)
    found = proposal_for(crowded, replace(LINUX, threads_per_worker=3.2, single_thread_remedy=uncrowded))
    threads = change(found, "worker_threads")
    assert (threads.now, threads.then) == (3.2, 1)
    assert threads.gain > 0.5
    assert found.kwargs["worker_threads"] == 1
    assert change(proposal_for(crowded), "worker_threads") is None


# -- properties of any proposal ------------------------------------------------------------------------------------


def test_torch_accepts_the_proposed_kwargs():
    torch_data = pytest.importorskip("torch.utils.data")
    for workload in (
        workload_of(workers=0, cpu_s=0.02, step_s=0.02),
        workload_of(workers=4, cpu_s=0.0002, receive_s=0.002, step_s=0.002),
    ):
        kwargs = proposal_for(workload).kwargs
        assert torch_data.DataLoader(range(8), **kwargs).num_workers == kwargs["num_workers"]


def test_gains_are_relative_to_a_measured_rate_above_the_predicted_one():
    slow = workload_of(workers=1, cpu_s=0.04, step_s=0.02)
    current = LoaderSettings(num_workers=1)
    predicted, corrected = (propose(slow, current, LINUX, measured_batches_s=rate).gain for rate in (0.0, 40.0))
    assert predicted == pytest.approx(1.0, rel=0.1)
    assert corrected == pytest.approx(0.24, abs=0.03)


def test_the_correction_of_a_prediction_that_is_too_low_applies_to_other_settings():
    """The run has two workers on two cores beside a step that computes, and was faster than the model predicts."""
    crowded = workload_of(
        workers=2, cpu_s=0.012, step_s=0.018, step_cpu_s=np.array([0.018]), cores=2.0, competitors=0.5
    )
    measured = 1.1 * predict(crowded).batches_s
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


def test_an_unknown_profile_is_refused():
    with pytest.raises(SettingError, match="not known"):
        proposal_for(workload_of(), profile="fast")


seconds = st.floats(0.001, 0.2)


@settings(max_examples=25, deadline=None)
@given(
    st.builds(
        workload_of,
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
def test_every_proposed_change_fits_into_memory_and_has_a_gain(workload, free_bytes, profile):
    found = proposal_for(workload, with_memory(free_bytes), profile)
    may_save_memory = profile == "memory" or found.now.overflows
    for proposed in found.changes:
        assert proposed.reason
        assert proposed.now != proposed.then
        assert proposed.gain >= MIN_GAIN or may_save_memory, proposed
    if any(proposed.name in ("num_workers", "prefetch_factor") for proposed in found.changes):
        assert not found.then.overflows or found.now.overflows
    if profile != "memory" and not found.now.overflows:
        assert found.gain >= 0
