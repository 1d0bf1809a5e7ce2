"""Runs small enough to be worked out by hand, and what holds for all of them."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import SettingError
from penstock.model.event_simulator import EventSimulation, turned
from penstock.model.simulation_input import ALONE, CPU, IO, PARTS, SERIAL, WorkerPool, batches
from penstock.model.simulator import simulate

times = st.floats(0.0, 1.0, allow_subnormal=False)
counts = st.integers(1, 40)
crews = st.builds(
    WorkerPool,
    workers=st.integers(1, 6),
    prefetch=st.integers(1, 4),
    in_order=st.booleans(),
    cores=st.sampled_from([0.5, 1.0, 2.0, 3.5, 8.0]),
    burners=st.sampled_from([0.0, 1.0]),
)


@st.composite
def columns(draw, *names):
    """Batches whose times are drawn one by one."""
    count = draw(counts)
    drawn = {name: draw(st.lists(times, min_size=count, max_size=count)) for name in names}
    if "step_cpu_s" in drawn:
        drawn["step_cpu_s"] = np.minimum(drawn["step_cpu_s"], drawn["step_s"])
    return batches(count, **drawn)


unshared = columns("alone_s", "cpu_s", "handover_s", "step_s")
anything = columns("alone_s", "io_s", "serial_s", "cpu_s", "handover_s", "step_s", "step_cpu_s")


# -- by hand -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 2, 12])
def test_slow_workers_give_one_slow_step_in_w_and_w_over_s_whatever_the_prefetch(prefetch):
    trace = simulate(batches(80, alone_s=0.8, step_s=0.01), WorkerPool(8, prefetch))
    slow = np.arange(80) % 8 == 0
    assert trace.rate(8) == pytest.approx(8 / 0.8)
    np.testing.assert_allclose(trace.wait_s[8:], np.where(slow, 0.8 - 7 * 0.01 - 0.01, 0.0)[8:], atol=1e-9)
    assert set(trace.ready[slow]) == {0}
    # With one task each, a worker begins again only when its batch is taken: all but one are still at it.
    assert trace.ready[8:16].tolist() == ([0] + [1] * 7 if prefetch == 1 else [0, 7, 6, 5, 4, 3, 2, 1])


def lagging(worker, workers, seconds):
    lag = np.zeros((len(PARTS), workers))
    lag[ALONE, worker] = seconds
    return lag


def test_a_lagging_worker_is_awaited_with_nearly_all_other_batches_ready():
    workers, prefetch = 4, 3
    trace = simulate(
        batches(80, alone_s=0.01, step_s=0.01), WorkerPool(workers, prefetch, lag=lagging(2, workers, 0.19))
    )
    stalls = np.flatnonzero(trace.wait_s > 0.1)[2:-prefetch]
    assert set(stalls % workers) == {2}
    assert set(trace.ready[stalls]) <= {(workers - 1) * prefetch - 1, (workers - 1) * prefetch}
    assert trace.rate(workers, skip=40) == pytest.approx(workers / 0.2)


def test_out_of_order_a_lagging_worker_just_makes_fewer():
    crew = WorkerPool(4, in_order=False, lag=lagging(2, 4, 0.39))
    trace = simulate(batches(400, alone_s=0.01, step_s=0.01), crew)
    made = np.bincount(trace.worker)
    assert made[2] == pytest.approx(trace.end_s / 0.4, abs=2)
    assert trace.rate(4, skip=40) == pytest.approx(1 / 0.01, rel=0.02)
    assert sorted(trace.batch) == list(range(400))


def test_two_workers_on_one_core_take_turns():
    trace = simulate(batches(2, cpu_s=1.0), WorkerPool(2, cores=1))
    assert trace.finished_s.tolist() == [2.0, 2.0]


def test_who_comes_later_slows_who_was_there():
    # The first has 1 s of the core for itself, then shares it; the second has had 1 s by the time the first leaves.
    trace = simulate(batches(4, alone_s=[0.0, 1.0, 0.0, 0.0], cpu_s=[2.0, 0.0, 0.0, 2.0]), WorkerPool(2, cores=1))
    assert trace.finished_s.tolist() == [3.0, 1.0, 3.0, 4.0]


def test_a_burner_halves_a_core_also_without_workers():
    assert simulate(batches(1, cpu_s=1.0), WorkerPool(1, cores=1, burners=1)).finished_s.tolist() == [2.0]
    assert simulate(batches(1, cpu_s=1.0), WorkerPool(0, cores=1, burners=1)).wait_s.tolist() == [2.0]


def test_a_computing_step_shares_the_cores_with_the_workers():
    trace = simulate(batches(2, cpu_s=[1.0, 2.0], step_s=2.0, step_cpu_s=1.0), WorkerPool(1, cores=1))
    # The step's second of computing and the second batch's go side by side from 1 to 3, then the batch is alone.
    assert trace.yielded_s.tolist() == [1.0, 4.0]
    assert trace.asked_s.tolist() == [0.0, 4.0]


def test_a_lock_is_held_by_one_at_a_time_in_the_order_of_coming():
    trace = simulate(batches(3, serial_s=[1.0, 2.0, 3.0]), WorkerPool(3))
    assert trace.finished_s.tolist() == [1.0, 3.0, 6.0]


@pytest.mark.parametrize(
    ("storage", "seconds"),
    [(lambda number: 1.0, 4.0), (lambda number: float(number), 1.0), (lambda number: 1.0 / number, 16.0)],
    ids=["constant", "scaling", "thrashing"],
)
def test_storage_serves_all_who_read_by_its_curve(storage, seconds):
    trace = simulate(batches(4, io_s=1.0), WorkerPool(4, storage=storage))
    np.testing.assert_allclose(trace.finished_s, seconds)


def test_without_workers_all_is_done_in_turn_and_nothing_is_handed_over():
    trace = simulate(batches(3, alone_s=1.0, cpu_s=1.0, serial_s=1.0, handover_s=9.0, step_s=2.0), WorkerPool(0))
    assert trace.wait_s.tolist() == [3.0, 3.0, 3.0]
    assert trace.end_s == 15.0
    assert trace.ready.tolist() == [0, 0, 0]


def test_work_ahead_of_the_last_step_is_under_way_but_not_delivered():
    for crew in (WorkerPool(2, 2), WorkerPool(2, 2, in_order=False)):
        trace = simulate(batches(20, alone_s=1.0, step_s=1.0), crew, steps=4)
        assert len(trace.yielded_s) == 4
        assert np.isfinite(trace.finished_s).sum() > 4
        assert trace.worker[-1] == -1


def test_batches_of_no_work_and_steps_of_no_time_end():
    trace = simulate(batches(5000, serial_s=0.0), WorkerPool(1, 2000, in_order=False))
    assert trace.end_s == 0.0
    assert trace.batch.tolist() == list(range(5000))


@pytest.mark.parametrize(
    ("parts", "cores", "samples_rate"),
    [({"alone_s": 0.1, "cpu_s": 0.1}, 2.0, 17.0), ({"io_s": 0.05, "cpu_s": 0.1}, 4.0, 18.1)],
)
def test_workers_that_wait_and_compute_in_turn_do_so_at_different_times(parts, cores, samples_rate):
    """The rate that a run of the same cost in 16 samples a batch has, each with some variance."""
    random = np.random.default_rng(0)
    of_batches = simulate(batches(400, **parts), WorkerPool(4, cores=cores)).rate(4, skip=40)
    of_samples = {name: random.gamma(11, seconds / 16 / 11, 6400) for name, seconds in parts.items()}
    truth = simulate(batches(6400, **of_samples), WorkerPool(4, 64, in_order=False, cores=cores)).rate(4, skip=640) / 16
    assert truth == pytest.approx(samples_rate, rel=0.05)
    assert of_batches == pytest.approx(truth, rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(1e-9, 1e3)), min_size=1, max_size=4), st.floats(0, 1))
def test_turned_parts_are_the_same_parts(parts, share):
    found = turned(parts, share)
    assert all(seconds >= 0 for _, seconds in found)
    for part in range(4):
        mine = [sum(seconds for at, seconds in each if at == part) for each in (parts, found)]
        assert mine[0] == pytest.approx(mine[1], rel=1e-9)


def test_parts_are_begun_after_their_share():
    assert turned([(CPU, 2.0), (IO, 1.0), (ALONE, 1.0)], 0.375) == [(IO, 0.5), (ALONE, 1.0), (CPU, 2.0), (IO, 0.5)]


# -- for all -------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(unshared, st.integers(1, 6), st.integers(1, 4), st.data())
def test_both_ways_of_computing_an_unshared_run_agree(work, workers, prefetch, data):
    lag = np.zeros((len(PARTS), workers))
    lag[CPU] = data.draw(st.lists(times, min_size=workers, max_size=workers))
    steps = data.draw(st.integers(1, len(work)))
    crew = WorkerPool(workers, prefetch, lag=lag)
    direct, events = simulate(work, crew, steps), EventSimulation(work, crew, steps).run()
    for name in ("asked_s", "yielded_s", "batch"):
        np.testing.assert_allclose(getattr(direct, name), getattr(events, name), atol=1e-9)
    with_the_last = np.isclose(np.fmin(direct.finished_s, events.finished_s), direct.end_s)  # or just after it
    np.testing.assert_array_equal(direct.worker[~with_the_last], events.worker[~with_the_last])
    known = np.isfinite(direct.finished_s) & np.isfinite(events.finished_s)
    np.testing.assert_allclose(direct.finished_s[known], events.finished_s[known], atol=1e-9)
    assert direct.end_s == pytest.approx(events.end_s)


@settings(max_examples=40)
@given(anything, crews)
def test_every_batch_comes_once_and_time_only_goes_forward(work, crew):
    trace = simulate(work, crew)
    assert sorted(trace.batch) == list(range(len(work)))
    if crew.in_order:
        assert trace.batch.tolist() == list(range(len(work)))
    assert (trace.wait_s >= 0).all()
    assert (trace.yielded_s >= trace.finished_s[trace.batch] - 1e-9).all()
    assert (trace.ready >= 0).all()
    if work.work.sum(axis=0).all():  # what takes no time may be made the moment it is asked for
        assert (trace.ready <= crew.tasks).all()
    stepped_s = np.append(trace.asked_s[1:], trace.end_s) - trace.yielded_s
    assert (stepped_s >= work.step_s - 1e-9).all()


@settings(max_examples=40)
@given(anything, crews)
def test_a_worker_makes_one_batch_after_the_other_and_takes_at_least_its_work(work, crew):
    trace = simulate(work, crew)
    for who in range(crew.workers):
        mine = np.flatnonzero(trace.worker == who)
        took_s = np.diff(trace.finished_s[mine], prepend=0.0)
        assert (took_s >= work.work[:, mine].sum(axis=0) - 1e-9).all()


@settings(max_examples=40)
@given(anything, crews)
@example(batches(1, step_s=1.0, step_cpu_s=1.0), WorkerPool(1, 1, in_order=False, cores=0.5))
def test_nothing_is_faster_than_any_bound(work, crew):
    end_s = simulate(work, crew).end_s * (1 + 1e-9) + 1e-9
    assert end_s >= work.work.sum() / crew.workers
    assert end_s >= (work.work[CPU].sum() + work.step_cpu_s.sum()) / crew.cores
    assert end_s >= work.work[IO].sum()
    assert end_s >= work.work[SERIAL].sum()
    assert end_s >= (work.step_s + work.handover_s).sum()


@settings(max_examples=40)
@given(unshared, st.integers(1, 4), st.integers(1, 3), st.integers(2, 3))
def test_unshared_twice_or_thrice_the_workers_or_the_prefetch_is_never_slower(work, workers, prefetch, times_more):
    base = simulate(work, WorkerPool(workers, prefetch)).end_s
    assert simulate(work, WorkerPool(workers * times_more, prefetch)).end_s <= base + 1e-9
    assert simulate(work, WorkerPool(workers, prefetch * times_more)).end_s <= base + 1e-9


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(1, 12), st.floats(0.1, 1.0), st.floats(0.0, 0.9))
def test_slow_workers_give_w_over_s(workers, prefetch, service_s, share):
    trace = simulate(
        batches(6 * workers, alone_s=service_s, step_s=share * service_s / workers), WorkerPool(workers, prefetch)
    )
    assert trace.rate(workers) == pytest.approx(workers / service_s)


# -- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": -1},
        {"workers": 1, "prefetch": 0},
        {"workers": 1, "cores": 0.0},
        {"workers": 1, "burners": -1.0},
        {"workers": 2, "storage": lambda number: 2.0 - number},
        {"workers": 2, "lag": np.zeros((len(PARTS), 3))},
    ],
)
def test_a_crew_that_cannot_be_is_refused(wrong):
    with pytest.raises(SettingError):
        WorkerPool(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"cpu_s": -1.0}, {"step_s": float("nan")}, {"alone_s": [1.0]}, {"step_cpu_s": 1.0}, {"decode_s": 1.0}],
)
def test_times_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingError):
        batches(3, **wrong)


@pytest.mark.parametrize("steps", [0, 4])
def test_steps_that_there_are_no_batches_for_are_refused(steps):
    with pytest.raises(SettingError):
        simulate(batches(3), WorkerPool(1), steps)


def test_a_rate_over_less_than_a_window_is_refused():
    with pytest.raises(SettingError, match="no window of 8"):
        simulate(batches(8, alone_s=1.0), WorkerPool(8)).rate(8)
