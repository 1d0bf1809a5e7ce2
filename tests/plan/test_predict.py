"""Rates by hand, and what must hold for any run."""

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


def run(count=60, workers=4, *, step_s=0.01, receive_s=0.0, cpu_s=0.0, latency_s=0.0, **others):
    """A workload of equal batches, but for what is given as an array."""
    columns = {"step_s": step_s, "receive_s": receive_s, "cpu_s": cpu_s, "latency_s": latency_s}
    who = np.arange(count) % workers if workers else np.full(count, -1)
    given = {"workers": workers, "prefetch": 2, "in_order": True, "cores": 64.0, "worker": who, **others}
    return Workload(**given, **{name: np.atleast_1d(values) for name, values in columns.items()})


def near(rate, rel=0.03):
    return pytest.approx(rate, rel=rel)


# -- by hand -------------------------------------------------------------------------------------------------------


def test_slow_workers_give_w_over_s_and_the_step_would_bind_next():
    found = predict(run(workers=8, latency_s=1.6, step_s=0.02), samples_per_batch=32)
    assert (found.batches_s, found.samples_s) == (near(5), near(160))
    assert (found.binding.name, found.next.name) == ("workers", "step")
    assert found.next.samples_s == near(1600)
    assert found.most_gain == near(9)
    assert found.by == "laws"


def test_thirty_two_workers_with_a_slow_batch_of_twenty_seconds_give_the_reports_rate_whatever_the_prefetch():
    # FACTS.md: 31 fast steps of C and one of S - 31·C. With C = 0.7 s and a slow one of 20 s, S is 41.7 s.
    for prefetch in (2, 12, 16):
        assert predict(run(96, 32, latency_s=41.7, step_s=0.7, prefetch=prefetch)).batches_s == near(32 / 41.7)


def test_a_slow_step_sets_the_pace_and_supply_can_give_nothing():
    found = predict(run(latency_s=0.01, step_s=0.1))
    assert found.batches_s == near(10)
    assert found.binding.name == "step"
    assert found.most_gain == near(0.0)


def test_taking_batches_over_is_the_main_process_s_own_time():
    found = predict(run(latency_s=0.01, step_s=0.06, receive_s=0.04))
    assert found.batches_s == near(10)
    assert (found.binding.name, found.next.name) == ("main", "step")
    assert found.most_gain == near(2 / 3)


def test_without_workers_making_and_computing_add_up():
    found = predict(run(workers=0, cpu_s=0.03, step_s=0.02))
    assert found.batches_s == near(20)
    assert found.binding.name == "main"
    assert found.most_gain == near(1.5)


def test_the_cores_bind_where_there_are_fewer_than_workers():
    found = predict(run(workers=8, cpu_s=0.1, cores=2.0, step_s=0.001))
    assert found.batches_s == near(20)
    assert found.binding.name == "cpu"


def test_without_workers_the_loop_has_no_more_than_its_part_of_a_core():
    found = predict(run(workers=0, cpu_s=0.03, step_s=0.02, step_cpu_s=np.array([0.02]), cores=0.5))
    assert found.batches_s == near(10)
    assert found.binding.name == "cpu"


def test_strangers_take_their_share_of_the_cores():
    alone, beside = (
        predict(run(workers=2, cpu_s=0.1, cores=2.0, step_s=0.001, competitors=b)).batches_s for b in (0, 2)
    )
    assert beside < 0.7 * alone


def test_a_lagging_worker_holds_all_up_in_order_and_only_itself_out_of_order():
    latency_s = np.where(np.arange(80) % 4 == 2, 0.4, 0.1)
    lagging = run(80, 4, latency_s=latency_s, step_s=0.001)
    assert predict(lagging).batches_s == near(4 / 0.4, 0.05)
    assert predict(lagging.replace(in_order=False)).batches_s == near(3 / 0.1 + 1 / 0.4, 0.08)
    assert service_s(lagging) == near(0.4)


def test_a_lag_stays_with_one_worker_when_there_are_more_of_them():
    latency_s = np.where(np.arange(80) % 4 == 2, 0.4, 0.1)
    eight = with_workers(run(80, 4, latency_s=latency_s, step_s=0.001), 8)
    assert predict(eight).batches_s == near(8 / 0.4, 0.05)


def test_start_ups_count():
    assert predict(run(100, latency_s=0.0, step_s=0.01, startup_s=1.0)).batches_s == near(50)


def test_uneven_batches_are_simulated_and_lose_what_no_law_sees():
    dice = np.random.default_rng(3)
    found = predict(run(400, 4, latency_s=np.where(dice.random(400) < 0.05, 0.4, 0.02), step_s=0.01))
    assert found.by == "simulation"
    assert 0.1 < found.lost < 0.9


def test_a_run_that_takes_no_time_has_no_limits():
    found = predict(run(step_s=0.0))
    assert found.batches_s == inf
    assert found.limits == ()
    assert found.binding is None
    assert found.next is None
    assert (found.most_gain, found.lost) == (0.0, 0.0)


def test_a_loop_that_does_nothing_could_gain_without_end():
    assert predict(run(latency_s=0.1, step_s=0.0)).most_gain == inf


def test_a_long_run_is_thinned_to_rounds_of_all_workers():
    long = run(10_000, 4, latency_s=np.resize([0.1, 0.2, 0.3, 0.4], 10_000))
    short = thinned(long)
    assert len(short) <= MAX_BATCHES
    assert list(short.worker[:8]) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert predict(short).batches_s == near(predict(long).batches_s)
    assert thinned(short) is short


# -- storage -------------------------------------------------------------------------------------------------------

FLAT = ((1, 100e6, 1e4), (8, 100e6, 1e4))
SCALES = ((1, 100e6, 1e3), (32, 3200e6, 32e3))
THRASHES = ((1, 100e6, 1e3), (2, 60e6, 600), (8, 30e6, 300))


def test_a_full_device_binds_whatever_the_number_of_workers():
    for workers in (4, 16):
        found = predict(on_storage(run(workers=workers, cpu_s=0.01), FLAT, batch_bytes=10e6))
        assert found.batches_s == near(10)
        assert found.binding.name == "bandwidth"


def test_storage_that_scales_leaves_the_workers_to_bind():
    found = predict(on_storage(run(workers=4, cpu_s=0.1, step_s=0.001), SCALES, batch_bytes=10e6))
    assert found.batches_s == near(4 / 0.2)
    assert found.in_flight == near(2)  # Little: 20 a second, 0.1 s each


def test_requests_bind_where_samples_are_small():
    found = predict(on_storage(run(workers=8), FLAT, batch_bytes=1e3, batch_requests=2000))
    assert found.batches_s == near(5)
    assert found.binding.name == "requests"


def test_a_thrashing_disk_gives_more_to_fewer_readers():
    rates = [predict(on_storage(run(workers=w, cpu_s=0.005), THRASHES, batch_bytes=10e6)).batches_s for w in (1, 2, 8)]
    assert rates[0] > 1.3 * rates[1] > 1.3 * rates[2]
    assert rates[2] == near(3, 0.06)


def test_without_workers_one_read_is_in_flight():
    found = predict(on_storage(run(workers=0, cpu_s=0.0, step_s=0.1), SCALES, batch_bytes=10e6))
    assert found.batches_s == near(5)
    assert found.in_flight == 1.0


def test_batches_that_read_unequally_long_still_do_on_another_storage():
    io_s = np.resize([0.1, 0.3], 60)
    stored = on_storage(run(io_s=io_s), FLAT, batch_bytes=10e6)
    assert stored.io_s.mean() == near(0.1)
    assert stored.io_s[1] / stored.io_s[0] == near(3)


def test_edits_keep_the_storage():
    stored = with_workers(on_storage(run(), FLAT, batch_bytes=10e6), 16)
    assert stored.workers == 16
    assert predict(stored).binding.name == "bandwidth"


@pytest.mark.parametrize(
    ("curve", "asked"),
    [
        ((), {"batch_bytes": 1.0}),
        (((2, 1.0, 1.0), (1, 1.0, 1.0)), {"batch_bytes": 1.0}),
        (((1, 0.0, 1.0),), {"batch_bytes": 1.0}),
        (((1, 1.0, float("nan")),), {"batch_bytes": 0.0, "batch_requests": 1.0}),
        (((1, 1.0, 1.0),), {"batch_bytes": 0.0}),
        (((1, 1.0, 1.0),), {"batch_bytes": -1.0}),
    ],
)
def test_curves_that_are_none_are_refused(curve, asked):
    with pytest.raises(SettingError):
        StorageReads(curve=curve, **asked)


def test_what_is_not_asked_for_need_not_be_known():
    assert StorageReads(curve=((1, 1e6, 0.0),), batch_bytes=1e6).batches_s(1.0) == 1.0


@given(
    workers=st.integers(1, 40),
    other_s=st.floats(0, 1),
    rates=st.lists(st.floats(0.5, 100), min_size=1, max_size=6),
)
def test_reads_in_flight_follow_littles_law(workers, other_s, rates):
    reads = StorageReads(curve=tuple((2**at, rate, 0.0) for at, rate in enumerate(rates)), batch_bytes=1.0)
    q = reads.in_flight(workers, other_s)
    assert 0 < q <= workers
    assert q + other_s * reads.batches_s(q) == pytest.approx(workers, rel=1e-4)  # each worker reads or works


# -- what must hold for any run ------------------------------------------------------------------------------------

seconds = st.floats(0.001, 0.3)
runs = st.builds(
    run,
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
@given(runs)
def test_never_above_any_law(workload):
    found = predict(workload)
    assert all(found.batches_s <= limit.rate * (1 + 1e-9) for limit in found.bounds)
    assert [limit.samples_s for limit in found.limits] == sorted(limit.samples_s for limit in found.limits)
    assert found.most_gain >= 0


@settings(max_examples=60, deadline=None)
@given(runs)
def test_the_laws_are_believed_only_where_the_simulator_says_the_same(workload):
    found = predict(workload)
    if found.by == "laws":
        assert found.batches_s == pytest.approx(workload.steady_rate, rel=0.05)


@settings(max_examples=40, deadline=None)
@given(runs, st.sampled_from([1.0, 2.0, 4.0]))
def test_more_cores_are_never_worse(workload, more):
    few, many = predict(workload), predict(with_cores(workload, workload.cores + more))
    assert many.batches_s >= 0.95 * few.batches_s


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), seconds, st.integers(1, 4))
def test_twice_the_service_halves_a_rate_that_workers_set(workers, latency_s, prefetch):
    step_s = latency_s / workers / (2 * CROSSOVER)
    once, twice = (
        predict(run(48, workers, latency_s=times * latency_s, step_s=step_s, prefetch=prefetch)) for times in (1, 2)
    )
    assert once.binding.name == twice.binding.name == "workers"
    assert twice.batches_s == near(once.batches_s / 2, 0.01)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), seconds, st.floats(0.001, 0.1), st.integers(2, 12))
def test_prefetch_changes_nothing_for_equal_batches(workers, latency_s, step_s, prefetch):
    workload = run(48, workers, latency_s=latency_s, step_s=step_s)
    assert is_even(workload)
    assert predict(with_prefetch(workload, prefetch)).batches_s == near(predict(workload).batches_s, 0.02)
