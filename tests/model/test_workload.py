"""Tests of workloads, their edits and the bootstrap, where the gain is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.model.bootstrap import bootstrap
from penstock.model.bounds import bounds
from penstock.model.edits import (
    out_of_order,
    overlap_with_workers,
    with_cores,
    with_prefetch,
    with_step,
    with_workers,
    without_competitors,
    without_cpu,
    without_io,
    without_ipc,
    without_lag,
    without_latency,
    without_lock,
    without_startup,
    without_stragglers,
)
from penstock.model.workload import Workload, find_stragglers, gain


def run(count=64, workers=4, *, step_s=0.01, receive_s=0.0, cpu_s=0.0, latency_s=0.0, **others):
    """Return a workload of equal batches, except for columns given as arrays."""
    columns = {"step_s": step_s, "receive_s": receive_s, "cpu_s": cpu_s, "latency_s": latency_s}
    worker = np.arange(count) % workers if workers else np.full(count, -1)
    settings = {"workers": workers, "prefetch": 2, "in_order": True, "cores": 64.0, "worker": worker, **others}
    return Workload(**settings, **{name: np.atleast_1d(values) for name, values in columns.items()})


def near(rate):
    return pytest.approx(rate, rel=0.02)


# -- rates ---------------------------------------------------------------------------------------------------------


def test_slow_workers_deliver_workers_over_service_time_batches_per_second():
    assert run(latency_s=0.4).rate() == near(10)


def test_a_slow_step_limits_the_rate():
    assert run(latency_s=0.01, step_s=0.1, receive_s=0.02).rate() == near(1 / 0.12)


def test_the_first_batches_are_left_out_of_the_rate():
    # From a cold start the first would add 0.4 s of wait to 0.2 s of steps.
    assert run(20, latency_s=0.039, step_s=0.01, prefetch=2).rate() == near(100)


def test_the_start_up_is_added_to_the_time():
    workload = run(100, step_s=0.01, startup_s=1.0)
    assert workload.rate() == near(100 / 2)
    assert gain(workload, without_startup(workload)) == near(1.0)


def test_full_cores_limit_the_rate():
    assert run(cpu_s=0.1, cores=2.0, workers=8).rate() == near(20)


def test_one_batch_is_enough_for_a_rate():
    assert run(1, workers=4, latency_s=0.4).rate() == near(10)


def test_a_run_that_took_no_time_has_no_gain():
    nothing = run(step_s=0.0)
    assert nothing.rate() == np.inf
    assert gain(nothing, with_workers(nothing, 8)) == 0.0


@settings(max_examples=50)
@given(
    st.integers(0, 6),
    st.integers(1, 3),
    st.lists(st.tuples(*[st.floats(0.001, 0.1)] * 4), min_size=1, max_size=5),
    st.sampled_from([1.0, 2.0, 64.0]),
)
def test_no_rate_exceeds_the_bounds_of_the_operational_laws(workers, prefetch, costs, cores):
    cpu_s, latency_s, lock_s, step_s = np.repeat(np.array(costs), 24, axis=0)[: 24 * len(costs)].T
    workload = run(
        len(cpu_s),
        workers,
        cpu_s=cpu_s,
        latency_s=latency_s,
        lock_s=lock_s,
        step_s=step_s,
        prefetch=prefetch,
        cores=cores,
    ).replace(worker=np.zeros(len(cpu_s), np.int64))
    # Batches that are ready when counting begins are received during the count but were made before it.
    slack = 1 + (workload.workers * (prefetch + 1) + 1) / len(workload)
    assert all(workload.rate() <= bound.rate * slack for bound in bounds(workload.demands()))


# -- edits ---------------------------------------------------------------------------------------------------------


def test_more_workers_help_slow_workers_and_more_prefetching_does_not():
    workload = run(latency_s=0.4)
    assert gain(workload, with_workers(workload, 8)) == near(1.0)
    assert gain(workload, with_prefetch(workload, 12)) == pytest.approx(0.0, abs=1e-9)
    assert gain(workload, out_of_order(workload)) == pytest.approx(0.0, abs=1e-9)


def test_more_workers_do_not_help_full_cores_and_more_cores_do():
    workload = run(cpu_s=0.1, cores=1.0)
    assert gain(workload, with_workers(workload, 8)) == pytest.approx(0.0, abs=0.02)
    assert gain(workload, with_cores(workload, 2.0)) == near(1.0)


def test_more_workers_do_not_help_full_storage():
    workload = run(io_s=np.full(64, 0.1))
    assert gain(workload, with_workers(workload, 8)) == pytest.approx(0.0, abs=0.02)
    assert gain(workload, without_io(workload)) == near(0.1 / 0.01 - 1)


def test_a_loop_without_workers_gains_the_time_that_overlaps():
    workload = run(workers=0, cpu_s=0.03, step_s=0.03)
    assert workload.rate() == near(1 / 0.06)
    assert gain(workload, overlap_with_workers(workload, 2)) == near(1.0)
    with pytest.raises(SettingError, match="overlap"):
        overlap_with_workers(run(), 2)


def test_without_the_lock_its_work_is_done_in_parallel():
    workload = run(lock_s=np.full(64, 0.1))
    assert workload.rate() == near(10)
    assert without_lock(workload).rate() == near(40)


def test_each_cost_can_be_removed():
    workload = run(latency_s=0.2, cpu_s=0.2, receive_s=0.01, step_s=0.01)
    assert workload.rate() == near(10)
    assert without_latency(workload).rate() == without_cpu(workload).rate() == near(20)
    assert without_ipc(without_latency(without_cpu(workload))).rate() == near(100)


def test_without_competing_processes_the_run_has_all_cores():
    workload = run(workers=1, cpu_s=0.1, step_s=0.001, cores=1.0, competitors=1.0)
    assert workload.rate() == near(5)
    assert without_competitors(workload).rate() == near(10)


def test_a_changed_step_computes_for_the_same_share():
    workload = with_step(run(step_s=0.1, step_cpu_s=np.full(64, 0.05)), 0.2)
    assert set(workload.step_cpu_s) == {0.1}
    assert workload.rate() == near(5)


def test_a_step_that_waits_for_a_core_gains_if_workers_do_not_compute():
    crowded = run(workers=4, cpu_s=0.1, step_s=0.1, step_cpu_s=np.full(64, 0.1), cores=1.0)
    assert crowded.rate() == near(5)
    assert without_cpu(crowded).rate() == near(10)


# -- a lagging worker ----------------------------------------------------------------------------------------------


def one_worker_lags(count=200, seconds=0.4, **others):
    return run(count, latency_s=np.where(np.arange(count) % 4 == 2, seconds, 0.02), step_s=0.01, **others)


def test_a_lagging_worker_is_found_with_its_lag():
    assert {worker: lag_s.sum() for worker, lag_s in one_worker_lags().lags.items()} == {2: pytest.approx(0.38)}
    assert run(latency_s=np.random.default_rng(0).exponential(0.1, 64)).lags == {}


def test_a_lagging_worker_delays_the_others_unless_delivery_is_out_of_order():
    workload = one_worker_lags()
    assert workload.rate() == near(4 / 0.4)
    assert without_lag(workload, 2).rate() == near(100)
    assert out_of_order(workload).rate() == near(100)
    assert gain(workload, with_prefetch(workload, 12)) == pytest.approx(0.0, abs=0.02)


def test_with_more_workers_the_lagging_one_remains():
    workload = with_workers(one_worker_lags(), 8)
    assert workload.rate() == near(8 / 0.4)


def test_removing_the_lag_of_an_unknown_or_of_the_only_worker_changes_nothing():
    workload = run(workers=1, latency_s=0.1)
    assert without_lag(workload, 0) is workload
    assert without_lag(workload, 7) is workload


# -- stragglers ----------------------------------------------------------------------------------------------------


def test_stragglers_are_distinguished_from_the_batches_of_a_lagging_worker():
    workload = one_worker_lags()
    assert not find_stragglers(workload).any()
    latency_s = workload.latency_s.copy()
    latency_s[[40, 101, 142]] += 3.0
    with_stragglers = workload.replace(latency_s=latency_s)
    assert np.flatnonzero(find_stragglers(with_stragglers)).tolist() == [40, 101, 142]
    np.testing.assert_allclose(without_stragglers(with_stragglers).latency_s, workload.latency_s)


def test_prefetch_hides_stragglers():
    latency_s = np.full(300, 0.01)
    latency_s[7::29] = 0.12
    workload = run(300, latency_s=latency_s, step_s=0.01)
    assert gain(workload, without_stragglers(workload)) > 0.1
    assert with_prefetch(workload, 8).rate() == near(without_stragglers(workload).rate())


# -- the interval of a gain ----------------------------------------------------------------------------------------


def noisy(count, seed=1):
    return run(count, cpu_s=np.random.default_rng(seed).gamma(2.0, 0.05, count), step_s=0.01)


def test_the_interval_contains_the_gain_and_is_narrower_for_a_longer_run():
    widths = []
    for count in (40, 400, 4000):
        workload = noisy(count)
        low, median, high = bootstrap(workload, lambda each: with_workers(each, 8), resamples=30)
        assert low <= median <= high
        assert low - 0.05 < gain(workload, with_workers(workload, 8)) < high + 0.05
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] > 0


def test_the_same_seed_gives_the_same_interval():
    found = [bootstrap(noisy(60), lambda each: with_workers(each, 8), resamples=5, seed=seed) for seed in (3, 3, 4)]
    assert found[0] == found[1] != found[2]


def test_a_change_without_effect_has_the_interval_zero():
    assert bootstrap(noisy(60), lambda each: each, resamples=5) == (0.0, 0.0, 0.0)


# -- invalid input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": np.zeros(0, np.int64)},
        {"startup_s": -1.0},
        {"cpu_s": np.zeros(7)},
        {"latency_s": np.full(64, np.nan)},
    ],
)
def test_an_impossible_workload_is_refused(wrong):
    with pytest.raises(SettingError):
        run().replace(**wrong)
