"""Tests of the simulator: runs small enough to be computed by hand, and properties of all runs."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.model.event_simulator import EventSimulation, rotate_stages
from penstock.model.simulation_data import CPU, IO, LATENCY, LOCK, STAGES, WorkerPool, make_batch_costs
from penstock.model.simulator import simulate

times = st.floats(0.0, 1.0, allow_subnormal=False)
counts = st.integers(1, 40)
pools = st.builds(
    WorkerPool,
    workers=st.integers(1, 6),
    prefetch=st.integers(1, 4),
    in_order=st.booleans(),
    cores=st.sampled_from([0.5, 1.0, 2.0, 3.5, 8.0]),
    competitors=st.sampled_from([0.0, 1.0]),
)


@st.composite
def columns(draw, *names):
    """Batch costs whose times are drawn one by one."""
    count = draw(counts)
    drawn = {name: draw(st.lists(times, min_size=count, max_size=count)) for name in names}
    if "step_cpu_s" in drawn:
        drawn["step_cpu_s"] = np.minimum(drawn["step_cpu_s"], drawn["step_s"])
    return make_batch_costs(count, **drawn)


uncontended = columns("latency_s", "cpu_s", "receive_s", "step_s")
anything = columns("latency_s", "io_s", "lock_s", "cpu_s", "receive_s", "step_s", "step_cpu_s")


# -- computed by hand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 2, 12])
def test_slow_workers_cause_one_slow_step_in_w_whatever_the_prefetch(prefetch):
    result = simulate(make_batch_costs(80, latency_s=0.8, step_s=0.01), WorkerPool(8, prefetch))
    slow = np.arange(80) % 8 == 0
    assert result.rate(8) == pytest.approx(8 / 0.8)
    np.testing.assert_allclose(result.wait_s[8:], np.where(slow, 0.8 - 7 * 0.01 - 0.01, 0.0)[8:], atol=1e-9)
    assert set(result.ready_batches[slow]) == {0}
    # With one task each, a worker begins again only when its batch is received: all but one are still working.
    assert result.ready_batches[8:16].tolist() == ([0] + [1] * 7 if prefetch == 1 else [0, 7, 6, 5, 4, 3, 2, 1])


def lagging(worker, workers, seconds):
    lag = np.zeros((len(STAGES), workers))
    lag[LATENCY, worker] = seconds
    return lag


def test_a_lagging_worker_is_awaited_while_nearly_all_other_batches_are_ready():
    workers, prefetch = 4, 3
    result = simulate(
        make_batch_costs(80, latency_s=0.01, step_s=0.01), WorkerPool(workers, prefetch, lag=lagging(2, workers, 0.19))
    )
    stalls = np.flatnonzero(result.wait_s > 0.1)[2:-prefetch]
    assert set(stalls % workers) == {2}
    assert set(result.ready_batches[stalls]) <= {(workers - 1) * prefetch - 1, (workers - 1) * prefetch}
    assert result.rate(workers, skip=40) == pytest.approx(workers / 0.2)


def test_out_of_order_a_lagging_worker_makes_fewer_batches_and_delays_none():
    pool = WorkerPool(4, in_order=False, lag=lagging(2, 4, 0.39))
    result = simulate(make_batch_costs(400, latency_s=0.01, step_s=0.01), pool)
    made = np.bincount(result.worker)
    assert made[2] == pytest.approx(result.end_s / 0.4, abs=2)
    assert result.rate(4, skip=40) == pytest.approx(1 / 0.01, rel=0.02)
    assert sorted(result.batch) == list(range(400))


def test_two_workers_on_one_core_each_take_twice_as_long():
    result = simulate(make_batch_costs(2, cpu_s=1.0), WorkerPool(2, cores=1))
    assert result.finished_s.tolist() == [2.0, 2.0]


def test_a_later_client_of_a_core_slows_the_earlier_one():
    # The first has 1 s of the core for itself, then shares it; the second has had 1 s by the time the first leaves.
    result = simulate(
        make_batch_costs(4, latency_s=[0.0, 1.0, 0.0, 0.0], cpu_s=[2.0, 0.0, 0.0, 2.0]), WorkerPool(2, cores=1)
    )
    assert result.finished_s.tolist() == [3.0, 1.0, 3.0, 4.0]


def test_a_competing_process_halves_a_core_also_without_workers():
    assert simulate(make_batch_costs(1, cpu_s=1.0), WorkerPool(1, cores=1, competitors=1)).finished_s.tolist() == [2.0]
    assert simulate(make_batch_costs(1, cpu_s=1.0), WorkerPool(0, cores=1, competitors=1)).wait_s.tolist() == [2.0]


def test_a_computing_step_shares_the_cores_with_the_workers():
    result = simulate(make_batch_costs(2, cpu_s=[1.0, 2.0], step_s=2.0, step_cpu_s=1.0), WorkerPool(1, cores=1))
    # The step's second of computing and the second batch's go side by side from 1 to 3, then the batch is alone.
    assert result.received_s.tolist() == [1.0, 4.0]
    assert result.requested_s.tolist() == [0.0, 4.0]


def test_a_lock_is_held_by_one_worker_at_a_time_in_order_of_arrival():
    result = simulate(make_batch_costs(3, lock_s=[1.0, 2.0, 3.0]), WorkerPool(3))
    assert result.finished_s.tolist() == [1.0, 3.0, 6.0]


@pytest.mark.parametrize(
    ("storage", "seconds"),
    [(lambda number: 1.0, 4.0), (lambda number: float(number), 1.0), (lambda number: 1.0 / number, 16.0)],
    ids=["constant", "scaling", "thrashing"],
)
def test_storage_serves_its_readers_by_its_throughput_curve(storage, seconds):
    result = simulate(make_batch_costs(4, io_s=1.0), WorkerPool(4, storage=storage))
    np.testing.assert_allclose(result.finished_s, seconds)


def test_without_workers_all_stages_are_sequential_and_receiving_costs_nothing():
    result = simulate(
        make_batch_costs(3, latency_s=1.0, cpu_s=1.0, lock_s=1.0, receive_s=9.0, step_s=2.0), WorkerPool(0)
    )
    assert result.wait_s.tolist() == [3.0, 3.0, 3.0]
    assert result.end_s == 15.0
    assert result.ready_batches.tolist() == [0, 0, 0]


def test_batches_prefetched_at_the_end_are_in_progress_but_not_delivered():
    for pool in (WorkerPool(2, 2), WorkerPool(2, 2, in_order=False)):
        result = simulate(make_batch_costs(20, latency_s=1.0, step_s=1.0), pool, steps=4)
        assert len(result.received_s) == 4
        assert np.isfinite(result.finished_s).sum() > 4
        assert result.worker[-1] == -1


def test_batches_and_steps_that_take_no_time_are_simulated():
    result = simulate(make_batch_costs(5000, lock_s=0.0), WorkerPool(1, 2000, in_order=False))
    assert result.end_s == 0.0
    assert result.batch.tolist() == list(range(5000))


@pytest.mark.parametrize(
    ("stages", "cores", "samples_rate"),
    [({"latency_s": 0.1, "cpu_s": 0.1}, 2.0, 17.0), ({"io_s": 0.05, "cpu_s": 0.1}, 4.0, 18.1)],
)
def test_workers_that_alternate_between_stages_do_not_do_so_in_step(stages, cores, samples_rate):
    """The rate is that of a run with the same cost in 16 samples per batch, each with some variance."""
    random = np.random.default_rng(0)
    of_batches = simulate(make_batch_costs(400, **stages), WorkerPool(4, cores=cores)).rate(4, skip=40)
    of_samples = {name: random.gamma(11, seconds / 16 / 11, 6400) for name, seconds in stages.items()}
    truth = (
        simulate(make_batch_costs(6400, **of_samples), WorkerPool(4, 64, in_order=False, cores=cores)).rate(4, skip=640)
        / 16
    )
    assert truth == pytest.approx(samples_rate, rel=0.05)
    assert of_batches == pytest.approx(truth, rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(1e-9, 1e3)), min_size=1, max_size=4), st.floats(0, 1))
def test_rotated_stages_take_the_same_time_in_all(stages, share):
    found = rotate_stages(stages, share)
    assert all(seconds >= 0 for _, seconds in found)
    for stage in range(4):
        before, after = (sum(seconds for which, seconds in each if which == stage) for each in (stages, found))
        assert before == pytest.approx(after, rel=1e-9)


def test_stages_begin_after_the_given_share_of_their_time():
    assert rotate_stages([(CPU, 2.0), (IO, 1.0), (LATENCY, 1.0)], 0.375) == [
        (IO, 0.5),
        (LATENCY, 1.0),
        (CPU, 2.0),
        (IO, 0.5),
    ]


# -- properties of all runs ----------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(uncontended, st.integers(1, 6), st.integers(1, 4), st.data())
def test_both_simulators_agree_on_runs_without_contention(work, workers, prefetch, data):
    lag = np.zeros((len(STAGES), workers))
    lag[CPU] = data.draw(st.lists(times, min_size=workers, max_size=workers))
    steps = data.draw(st.integers(1, len(work)))
    pool = WorkerPool(workers, prefetch, lag=lag)
    direct, events = simulate(work, pool, steps), EventSimulation(work, pool, steps).run()
    for name in ("requested_s", "received_s", "batch"):
        np.testing.assert_allclose(getattr(direct, name), getattr(events, name), atol=1e-9)
    at_the_end = np.isclose(np.fmin(direct.finished_s, events.finished_s), direct.end_s)  # or just after it
    np.testing.assert_array_equal(direct.worker[~at_the_end], events.worker[~at_the_end])
    known = np.isfinite(direct.finished_s) & np.isfinite(events.finished_s)
    np.testing.assert_allclose(direct.finished_s[known], events.finished_s[known], atol=1e-9)
    assert direct.end_s == pytest.approx(events.end_s)


@settings(max_examples=40)
@given(anything, pools)
def test_every_batch_is_delivered_once_and_time_only_goes_forward(work, pool):
    result = simulate(work, pool)
    assert sorted(result.batch) == list(range(len(work)))
    if pool.in_order:
        assert result.batch.tolist() == list(range(len(work)))
    assert (result.wait_s >= 0).all()
    assert (result.received_s >= result.finished_s[result.batch] - 1e-9).all()
    assert (result.ready_batches >= 0).all()
    if work.work.sum(axis=0).all():  # a batch that takes no time may be made when it is requested
        assert (result.ready_batches <= pool.outstanding_tasks).all()
    stepped_s = np.append(result.requested_s[1:], result.end_s) - result.received_s
    assert (stepped_s >= work.step_s - 1e-9).all()


@settings(max_examples=40)
@given(anything, pools)
def test_a_worker_makes_its_batches_sequentially_and_needs_at_least_their_work(work, pool):
    result = simulate(work, pool)
    for worker in range(pool.workers):
        batches = np.flatnonzero(result.worker == worker)
        took_s = np.diff(result.finished_s[batches], prepend=0.0)
        assert (took_s >= work.work[:, batches].sum(axis=0) - 1e-9).all()


@settings(max_examples=40)
@given(anything, pools)
@example(make_batch_costs(1, step_s=1.0, step_cpu_s=1.0), WorkerPool(1, 1, in_order=False, cores=0.5))
def test_nothing_is_faster_than_any_bound(work, pool):
    end_s = simulate(work, pool).end_s * (1 + 1e-9) + 1e-9
    assert end_s >= work.work.sum() / pool.workers
    assert end_s >= (work.work[CPU].sum() + work.step_cpu_s.sum()) / pool.cores
    assert end_s >= work.work[IO].sum()
    assert end_s >= work.work[LOCK].sum()
    assert end_s >= (work.step_s + work.receive_s).sum()


@settings(max_examples=40)
@given(uncontended, st.integers(1, 4), st.integers(1, 3), st.integers(2, 3))
def test_a_multiple_of_workers_or_prefetch_is_never_slower_without_contention(work, workers, prefetch, times_more):
    base = simulate(work, WorkerPool(workers, prefetch)).end_s
    assert simulate(work, WorkerPool(workers * times_more, prefetch)).end_s <= base + 1e-9
    assert simulate(work, WorkerPool(workers, prefetch * times_more)).end_s <= base + 1e-9


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(1, 12), st.floats(0.1, 1.0), st.floats(0.0, 0.9))
def test_slow_workers_deliver_workers_over_service_time_batches_per_second(workers, prefetch, service_s, share):
    result = simulate(
        make_batch_costs(6 * workers, latency_s=service_s, step_s=share * service_s / workers),
        WorkerPool(workers, prefetch),
    )
    assert result.rate(workers) == pytest.approx(workers / service_s)


# -- invalid input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": -1},
        {"workers": 1, "prefetch": 0},
        {"workers": 1, "cores": 0.0},
        {"workers": 1, "competitors": -1.0},
        {"workers": 2, "storage": lambda number: 2.0 - number},
        {"workers": 2, "lag": np.zeros((len(STAGES), 3))},
    ],
)
def test_an_impossible_worker_pool_is_refused(wrong):
    with pytest.raises(SettingError):
        WorkerPool(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"cpu_s": -1.0}, {"step_s": float("nan")}, {"latency_s": [1.0]}, {"step_cpu_s": 1.0}, {"decode_s": 1.0}],
)
def test_impossible_times_are_refused(wrong):
    with pytest.raises(SettingError):
        make_batch_costs(3, **wrong)


@pytest.mark.parametrize("steps", [0, 4])
def test_more_steps_than_batches_are_refused(steps):
    with pytest.raises(SettingError):
        simulate(make_batch_costs(3), WorkerPool(1), steps)


def test_a_rate_over_less_than_a_window_is_refused():
    with pytest.raises(SettingError, match="no window of 8"):
        simulate(make_batch_costs(8, latency_s=1.0), WorkerPool(8)).rate(8)
