"""Predicted rates that can be calculated by hand, and properties that hold for any workload."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.model.edits import with_cores, with_prefetch, with_workers
from penstock.model.workload import Workload
from penstock.plan.predict import CROSSOVER, MAX_BATCHES, is_even, predict, service_s, thinned
from penstock.plan.storage_model import StorageReads, on_storage


def workload_of(count=60, workers=4, *, step_s=0.01, receive_s=0.0, cpu_s=0.0, latency_s=0.0, **others):
    """Return a workload of equal batches; an array gives one value per batch."""
    columns = {"step_s": step_s, "receive_s": receive_s, "cpu_s": cpu_s, "latency_s": latency_s}
    worker = np.arange(count) % workers if workers else np.full(count, -1)
    settings = {"workers": workers, "prefetch": 2, "in_order": True, "cores": 64.0, "worker": worker, **others}
    return Workload(**settings, **{name: np.atleast_1d(values) for name, values in columns.items()})


def near(rate, rel=0.03):
    return pytest.approx(rate, rel=rel)


# -- calculated by hand --------------------------------------------------------------------------------------------


def test_slow_workers_limit_the_rate_to_w_over_s_and_the_step_is_the_next_limit():
    found = predict(workload_of(workers=8, latency_s=1.6, step_s=0.02), samples_per_batch=32)
    assert (found.batches_s, found.samples_s) == (near(5), near(160))
    assert (found.binding.name, found.next.name) == ("workers", "step")
    assert found.next.samples_s == near(1600)
    assert found.most_gain == near(9)
    assert found.by == "laws"


def test_prefetch_does_not_change_the_rate_of_32_slow_workers():
    # in each round of 32 batches the loop makes 31 steps of 0.7 s and then waits until the 41.7 s of a worker are over
    for prefetch in (2, 12, 16):
        assert predict(workload_of(96, 32, latency_s=41.7, step_s=0.7, prefetch=prefetch)).batches_s == near(32 / 41.7)


def test_a_slow_step_limits_the_rate_and_leaves_no_gain_to_loading():
    found = predict(workload_of(latency_s=0.01, step_s=0.1))
    assert found.batches_s == near(10)
    assert found.binding.name == "step"
    assert found.most_gain == near(0.0)


def test_receiving_batches_and_the_step_add_up_in_the_main_process():
    found = predict(workload_of(latency_s=0.01, step_s=0.06, receive_s=0.04))
    assert found.batches_s == near(10)
    assert (found.binding.name, found.next.name) == ("main", "step")
    assert found.most_gain == near(2 / 3)


def test_without_workers_making_a_batch_and_the_step_add_up():
    found = predict(workload_of(workers=0, cpu_s=0.03, step_s=0.02))
    assert found.batches_s == near(20)
    assert found.binding.name == "main"
    assert found.most_gain == near(1.5)


def test_cores_limit_the_rate_if_there_are_fewer_than_workers():
    found = predict(workload_of(workers=8, cpu_s=0.1, cores=2.0, step_s=0.001))
    assert found.batches_s == near(20)
    assert found.binding.name == "cpu"


def test_without_workers_a_fraction_of_a_core_limits_the_rate():
    found = predict(workload_of(workers=0, cpu_s=0.03, step_s=0.02, step_cpu_s=np.array([0.02]), cores=0.5))
    assert found.batches_s == near(10)
    assert found.binding.name == "cpu"


def test_other_programs_take_their_share_of_the_cores():
    alone, beside = (
        predict(workload_of(workers=2, cpu_s=0.1, cores=2.0, step_s=0.001, competitors=busy_cores)).batches_s
        for busy_cores in (0, 2)
    )
    assert beside < 0.7 * alone


def test_a_lagging_worker_delays_all_in_order_and_only_itself_out_of_order():
    latency_s = np.where(np.arange(80) % 4 == 2, 0.4, 0.1)
    lagging = workload_of(80, 4, latency_s=latency_s, step_s=0.001)
    assert predict(lagging).batches_s == near(4 / 0.4, 0.05)
    assert predict(lagging.replace(in_order=False)).batches_s == near(3 / 0.1 + 1 / 0.4, 0.08)
    assert service_s(lagging) == near(0.4)


def test_more_workers_do_not_remove_the_lag_of_one():
    latency_s = np.where(np.arange(80) % 4 == 2, 0.4, 0.1)
    eight = with_workers(workload_of(80, 4, latency_s=latency_s, step_s=0.001), 8)
    assert predict(eight).batches_s == near(8 / 0.4, 0.05)


def test_the_rate_includes_the_start_up():
    assert predict(workload_of(100, latency_s=0.0, step_s=0.01, startup_s=1.0)).batches_s == near(50)


def test_uneven_batches_are_simulated_and_stay_below_the_laws():
    slow = np.random.default_rng(3).random(400) < 0.05
    found = predict(workload_of(400, 4, latency_s=np.where(slow, 0.4, 0.02), step_s=0.01))
    assert found.by == "simulation"
    assert 0.1 < found.lost < 0.9


def test_a_workload_that_takes_no_time_has_no_limits():
    found = predict(workload_of(step_s=0.0))
    assert found.batches_s == inf
    assert found.limits == ()
    assert found.binding is None
    assert found.next is None
    assert (found.most_gain, found.lost) == (0.0, 0.0)


def test_a_step_that_takes_no_time_has_an_infinite_largest_gain():
    assert predict(workload_of(latency_s=0.1, step_s=0.0)).most_gain == inf


def test_a_long_workload_is_thinned_to_whole_rounds_of_the_workers():
    long = workload_of(10_000, 4, latency_s=np.resize([0.1, 0.2, 0.3, 0.4], 10_000))
    short = thinned(long)
    assert len(short) <= MAX_BATCHES
    assert list(short.worker[:8]) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert predict(short).batches_s == near(predict(long).batches_s)
    assert thinned(short) is short


# -- storage -------------------------------------------------------------------------------------------------------

FLAT = ((1, 100e6, 1e4), (8, 100e6, 1e4))
SCALES = ((1, 100e6, 1e3), (32, 3200e6, 32e3))
THRASHES = ((1, 100e6, 1e3), (2, 60e6, 600), (8, 30e6, 300))


def test_a_device_at_its_bandwidth_is_the_limit_for_any_number_of_workers():
    for workers in (4, 16):
        found = predict(on_storage(workload_of(workers=workers, cpu_s=0.01), FLAT, batch_bytes=10e6))
        assert found.batches_s == near(10)
        assert found.binding.name == "bandwidth"


def test_workers_are_the_limit_on_storage_that_scales():
    found = predict(on_storage(workload_of(workers=4, cpu_s=0.1, step_s=0.001), SCALES, batch_bytes=10e6))
    assert found.batches_s == near(4 / 0.2)
    assert found.in_flight == near(2)  # by Little's law: 20 batches a second, 0.1 s each


def test_requests_are_the_limit_for_small_samples():
    found = predict(on_storage(workload_of(workers=8), FLAT, batch_bytes=1e3, batch_requests=2000))
    assert found.batches_s == near(5)
    assert found.binding.name == "requests"


def test_a_thrashing_disk_is_faster_with_fewer_readers():
    rates = [
        predict(on_storage(workload_of(workers=workers, cpu_s=0.005), THRASHES, batch_bytes=10e6)).batches_s
        for workers in (1, 2, 8)
    ]
    assert rates[0] > 1.3 * rates[1] > 1.3 * rates[2]
    assert rates[2] == near(3, 0.06)


def test_without_workers_one_read_is_in_flight():
    found = predict(on_storage(workload_of(workers=0, cpu_s=0.0, step_s=0.1), SCALES, batch_bytes=10e6))
    assert found.batches_s == near(5)
    assert found.in_flight == 1.0


def test_differences_between_read_times_are_kept_on_another_storage():
    io_s = np.resize([0.1, 0.3], 60)
    stored = on_storage(workload_of(io_s=io_s), FLAT, batch_bytes=10e6)
    assert stored.io_s.mean() == near(0.1)
    assert stored.io_s[1] / stored.io_s[0] == near(3)


def test_edits_of_a_workload_keep_its_storage():
    stored = with_workers(on_storage(workload_of(), FLAT, batch_bytes=10e6), 16)
    assert stored.workers == 16
    assert predict(stored).binding.name == "bandwidth"


@pytest.mark.parametrize(
    ("curve", "amounts"),
    [
        ((), {"batch_bytes": 1.0}),
        (((2, 1.0, 1.0), (1, 1.0, 1.0)), {"batch_bytes": 1.0}),
        (((1, 0.0, 1.0),), {"batch_bytes": 1.0}),
        (((1, 1.0, float("nan")),), {"batch_bytes": 0.0, "batch_requests": 1.0}),
        (((1, 1.0, 1.0),), {"batch_bytes": 0.0}),
        (((1, 1.0, 1.0),), {"batch_bytes": -1.0}),
    ],
)
def test_impossible_curves_and_amounts_are_refused(curve, amounts):
    with pytest.raises(SettingError):
        StorageReads(curve=curve, **amounts)


def test_a_rate_that_no_batch_needs_may_be_zero():
    assert StorageReads(curve=((1, 1e6, 0.0),), batch_bytes=1e6).batches_s(1.0) == 1.0


@given(
    workers=st.integers(1, 40),
    other_s=st.floats(0, 1),
    rates=st.lists(st.floats(0.5, 100), min_size=1, max_size=6),
)
def test_reads_in_flight_follow_littles_law(workers, other_s, rates):
    reads = StorageReads(curve=tuple((2**index, rate, 0.0) for index, rate in enumerate(rates)), batch_bytes=1.0)
    in_flight = reads.in_flight(workers, other_s)
    assert 0 < in_flight <= workers
    assert in_flight + other_s * reads.batches_s(in_flight) == pytest.approx(
        workers, rel=1e-4
    )  # each worker reads or does other work


# -- properties of any workload ------------------------------------------------------------------------------------

seconds = st.floats(0.001, 0.3)
workloads = st.builds(
    workload_of,
    st.just(48),
    st.integers(0, 12),
    step_s=st.floats(0.0, 0.1),
    receive_s=st.sampled_from([0.0, 0.002]),
    cpu_s=seconds,
    latency_s=seconds,
    cores=st.sampled_from([1.0, 2.0, 4.0, 16.0]),
    prefetch=st.integers(1, 4),
    in_order=st.booleans(),
    competitors=st.sampled_from([0.0, 0.0, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(workloads)
def test_a_prediction_is_never_above_a_bound(workload):
    found = predict(workload)
    assert all(found.batches_s <= bound.rate * (1 + 1e-9) for bound in found.bounds)
    assert [limit.samples_s for limit in found.limits] == sorted(limit.samples_s for limit in found.limits)
    assert found.most_gain >= 0


@settings(max_examples=60, deadline=None)
@given(workloads)
def test_a_prediction_by_the_laws_agrees_with_the_simulator(workload):
    found = predict(workload)
    if found.by == "laws":
        assert found.batches_s == pytest.approx(workload.steady_rate, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(workloads, st.sampled_from([1.0, 2.0, 4.0]))
def test_more_cores_are_never_slower(workload, more_cores):
    few, many = predict(workload), predict(with_cores(workload, workload.cores + more_cores))
    assert many.batches_s >= 0.95 * few.batches_s


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), seconds, st.integers(1, 4))
def test_twice_the_time_per_batch_halves_a_rate_that_workers_limit(workers, latency_s, prefetch):
    step_s = latency_s / workers / (2 * CROSSOVER)
    once, twice = (
        predict(workload_of(48, workers, latency_s=times * latency_s, step_s=step_s, prefetch=prefetch))
        for times in (1, 2)
    )
    assert once.binding.name == twice.binding.name == "workers"
    assert twice.batches_s == near(once.batches_s / 2, 0.01)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), seconds, st.floats(0.001, 0.1), st.integers(2, 12))
def test_prefetch_changes_nothing_for_equal_batches(workers, latency_s, step_s, prefetch):
    workload = workload_of(48, workers, latency_s=latency_s, step_s=step_s)
    assert is_even(workload)
    assert predict(with_prefetch(workload, prefetch)).batches_s == near(predict(workload).batches_s, 0.02)
