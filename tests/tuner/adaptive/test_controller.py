"""Decisions from measurements, and the windows that they are made from."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tuner.adaptive.controller import (
    MIN_ROUNDS,
    MIN_WINDOW_S,
    AdaptivePolicy,
    StepWindow,
    WindowStats,
)
from penstock.tuner.result import WorkerSettings

GB = 1 << 30


def stats(wait_s=5.0, compute_s=5.0, batches=100, **memory):
    return WindowStats(batches=batches, wait_s=wait_s, compute_s=compute_s, **memory)


def settings(controller, *windows):
    """Return the settings in force after each window."""
    found = []
    for window in windows:
        controller.decide(window)
        found.append(controller.setting)
    return found


def test_loop_that_hardly_waits_is_left_alone():
    controller = AdaptivePolicy(WorkerSettings(2))
    assert controller.decide(stats(wait_s=0.5, compute_s=9.5)) is None
    assert controller.setting == WorkerSettings(2)


def test_as_many_workers_are_added_as_remove_the_wait():
    decision = AdaptivePolicy(WorkerSettings(4)).decide(stats(wait_s=5, compute_s=10))
    assert decision.setting == WorkerSettings(6)
    assert "waits 33%" in str(decision)


def test_workers_are_at_most_doubled():
    assert AdaptivePolicy(WorkerSettings(4)).decide(stats(wait_s=99, compute_s=1)).setting == WorkerSettings(8)
    assert AdaptivePolicy(WorkerSettings(4)).decide(stats(wait_s=9, compute_s=0)).setting == WorkerSettings(8)
    assert AdaptivePolicy(WorkerSettings(4), max_workers=5).decide(
        stats(wait_s=9, compute_s=0)
    ).setting == WorkerSettings(5)


def test_change_that_gains_is_kept_and_followed_by_another():
    controller = AdaptivePolicy(WorkerSettings(2))
    faster = stats(wait_s=2.0, compute_s=5.0)
    assert settings(controller, stats(), faster, stats(wait_s=0.1)) == [
        WorkerSettings(4),
        WorkerSettings(6),
        WorkerSettings(6),
    ]


def test_change_that_does_not_gain_is_reverted_for_good():
    controller = AdaptivePolicy(WorkerSettings(2), prefetch_pinned=True)
    assert settings(controller, stats(), stats(), stats(), stats()) == [
        WorkerSettings(4),
        WorkerSettings(2),
        WorkerSettings(2),
        WorkerSettings(2),
    ]


def test_reason_for_a_reverted_change_has_its_numbers():
    controller = AdaptivePolicy(WorkerSettings(2))
    controller.decide(stats())
    back = controller.decide(stats(wait_s=4.9))
    assert str(back) == "2 workers: 4 workers gained 1.0%, less than 3%; back, and staying"


def test_prefetch_is_tried_after_workers_and_reverted_alike():
    controller = AdaptivePolicy(WorkerSettings(2))
    assert settings(controller, *[stats()] * 6) == [
        WorkerSettings(4),
        WorkerSettings(2),
        WorkerSettings(2, 4),
        WorkerSettings(2),
        WorkerSettings(2),
        WorkerSettings(2),
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_pinned_workers_are_never_changed(workers):
    controller = AdaptivePolicy(WorkerSettings(workers), workers_pinned=True)
    memory = {"batch_bytes": GB, "worker_bytes": GB, "free_bytes": 0}
    found = settings(controller, stats(), stats(), stats(**memory), stats(**memory))
    assert {setting.workers for setting in found} == {workers}


def test_pinned_prefetch_is_never_changed():
    controller = AdaptivePolicy(WorkerSettings(2, 5), prefetch_pinned=True)
    assert {setting.prefetch for setting in settings(controller, *[stats()] * 8)} == {5}


def test_nothing_is_reported_if_everything_is_pinned():
    controller = AdaptivePolicy(WorkerSettings(2), workers_pinned=True, prefetch_pinned=True)
    assert controller.decide(stats()) is None


def test_loader_without_workers_is_left_alone():
    assert AdaptivePolicy(WorkerSettings(0), workers_pinned=True).decide(stats()) is None


def test_workers_that_do_not_fit_into_memory_are_not_added():
    controller = AdaptivePolicy(WorkerSettings(2), prefetch_pinned=True)
    tight = stats(batch_bytes=GB // 4, worker_bytes=GB // 4, free_bytes=6 * GB)
    decision = controller.decide(tight)
    assert decision.setting == WorkerSettings(2)
    assert "would take 4.56 GB of memory, and 6.44 GB are free" in decision.reason
    assert controller.decide(tight) is None  # reported once


def test_short_memory_removes_workers_for_good_and_without_overlap():
    controller = AdaptivePolicy(WorkerSettings(8))
    decision = controller.decide(stats(batch_bytes=GB // 8, worker_bytes=GB // 8, free_bytes=GB // 10))
    assert decision.setting == WorkerSettings(4)
    assert not decision.overlap
    assert settings(controller, stats(free_bytes=900 * GB), stats(free_bytes=900 * GB)) == [WorkerSettings(4)] * 2


def test_short_memory_during_a_change_ends_its_evaluation():
    controller = AdaptivePolicy(WorkerSettings(4))
    controller.decide(stats())
    controller.decide(stats(batch_bytes=GB, worker_bytes=GB, free_bytes=GB))
    assert settings(controller, stats(), stats()) == [WorkerSettings(4)] * 2


def test_short_memory_with_pinned_workers_is_reported_once():
    controller = AdaptivePolicy(WorkerSettings(4), workers_pinned=True, prefetch_pinned=True)
    short = stats(batch_bytes=GB, worker_bytes=GB, free_bytes=GB)
    assert "num_workers was set by the user" in controller.decide(short).reason
    assert controller.decide(short) is None


def test_change_that_cannot_be_made_is_reverted_for_good():
    controller = AdaptivePolicy(WorkerSettings(2), prefetch_pinned=True)
    controller.decide(stats())
    decision = controller.refused("OSError: no more processes")
    assert decision.setting == controller.setting == WorkerSettings(2)
    assert "no more processes" in decision.reason
    assert controller.decide(stats()) is None


windows = st.builds(
    WindowStats,
    batches=st.integers(1, 1000),
    wait_s=st.floats(0, 100),
    compute_s=st.floats(0, 100),
    batch_bytes=st.integers(0, GB),
    worker_bytes=st.integers(0, GB),
    free_bytes=st.none() | st.integers(0, 64 * GB),
)


@given(st.lists(windows, max_size=60), st.integers(1, 64), st.booleans(), st.booleans())
def test_changes_come_to_an_end_for_any_measurements(measurements, workers, workers_pinned, prefetch_pinned):
    begin = WorkerSettings(workers)
    controller = AdaptivePolicy(begin, workers_pinned=workers_pinned, prefetch_pinned=prefetch_pinned)
    found = [begin, *settings(controller, *measurements)]
    changes = sum(one != other for one, other in pairwise(found))
    assert changes <= 64 + math.log2(64) + 4 + 2
    assert all(1 <= setting.workers <= 64 and 2 <= setting.prefetch <= 16 for setting in found)
    assert not workers_pinned or {setting.workers for setting in found} == {workers}
    assert not prefetch_pinned or {setting.prefetch for setting in found} == {2}


def test_gain_of_one_of_several_ranks_shows_in_its_own_waiting():
    """The others set the pace: it waits for them in its step instead of for its data."""
    same_pace = stats(wait_s=1.0, compute_s=9.0)
    alone = AdaptivePolicy(WorkerSettings(2), prefetch_pinned=True)
    assert settings(alone, stats(), same_pace) == [WorkerSettings(4), WorkerSettings(2)]
    in_step = AdaptivePolicy(WorkerSettings(2), prefetch_pinned=True, synchronous=True)
    assert settings(in_step, stats(), stats(wait_s=0.5, compute_s=9.5)) == [WorkerSettings(4), WorkerSettings(4)]
    assert settings(AdaptivePolicy(WorkerSettings(2), synchronous=True), stats(), stats(wait_s=4.8)) == [
        WorkerSettings(4),
        WorkerSettings(2),
    ]


def test_ranks_of_a_machine_divide_the_memory_to_grow_into():
    short = stats(batch_bytes=GB, free_bytes=30 * GB)
    assert AdaptivePolicy(WorkerSettings(2)).decide(short).setting == WorkerSettings(4)
    decision = AdaptivePolicy(WorkerSettings(2), ranks=2).decide(short)
    assert decision.setting == WorkerSettings(2)
    assert "would take" in str(decision)


# -- windows -------------------------------------------------------------------------------------------------------


def filled(steps, wait_s=0.5, compute_s=0.5):
    window = StepWindow()
    for _ in range(steps):
        window.add(wait_s, compute_s)
    return window


def test_window_is_full_after_whole_rounds_of_the_workers():
    assert not filled(MIN_ROUNDS * 3 - 1).is_full(3)
    assert filled(MIN_ROUNDS * 3).is_full(3)
    assert not filled(MIN_ROUNDS * 3 + 1).is_full(3)
    assert filled(MIN_ROUNDS).is_full(0)


def test_window_has_a_minimum_duration():
    assert not filled(MIN_ROUNDS, MIN_WINDOW_S / MIN_ROUNDS / 4, MIN_WINDOW_S / MIN_ROUNDS / 4).is_full(1)


def test_window_is_empty_after_a_reset():
    window = filled(MIN_ROUNDS)
    window.reset()
    assert not window.is_full(1)


def test_pause_between_steps_counts_as_a_few_steps():
    window = filled(10, 0.1, 1.0)
    window.add(0.1, 3600.0)
    measured = window.stats(batch_bytes=1, worker_bytes=2, free_bytes=3)
    assert measured.compute_s == pytest.approx(10 + 5)
    assert measured.wait_s == pytest.approx(1.1)
    assert (measured.batches, measured.batch_bytes, measured.worker_bytes, measured.free_bytes) == (11, 1, 2, 3)
