import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tuner.adaptive.controller import AdaptivePolicy, WindowStats
from penstock.tuner.result import Setting

GB = 1 << 30


def seen(wait_s=5.0, compute_s=5.0, batches=100, **memory):
    return WindowStats(batches=batches, wait_s=wait_s, compute_s=compute_s, **memory)


def settings(controller, *windows):
    """What is in force after each window."""
    found = []
    for window in windows:
        controller.decide(window)
        found.append(controller.setting)
    return found


def test_a_loop_that_hardly_waits_is_left_alone():
    controller = AdaptivePolicy(Setting(2))
    assert controller.decide(seen(wait_s=0.5, compute_s=9.5)) is None
    assert controller.setting == Setting(2)


def test_waiting_adds_as_many_workers_as_would_cover_it():
    decision = AdaptivePolicy(Setting(4)).decide(seen(wait_s=5, compute_s=10))
    assert decision.setting == Setting(6)
    assert "waits 33%" in str(decision)


def test_no_more_than_twice_as_many_are_added_at_a_time():
    assert AdaptivePolicy(Setting(4)).decide(seen(wait_s=99, compute_s=1)).setting == Setting(8)
    assert AdaptivePolicy(Setting(4)).decide(seen(wait_s=9, compute_s=0)).setting == Setting(8)
    assert AdaptivePolicy(Setting(4), most_workers=5).decide(seen(wait_s=9, compute_s=0)).setting == Setting(5)


def test_what_gains_is_kept_and_goes_on():
    controller = AdaptivePolicy(Setting(2))
    faster = seen(wait_s=2.0, compute_s=5.0)
    assert settings(controller, seen(), faster, seen(wait_s=0.1)) == [Setting(4), Setting(6), Setting(6)]


def test_what_does_not_gain_is_taken_back_and_not_tried_again():
    controller = AdaptivePolicy(Setting(2), prefetch_pinned=True)
    assert settings(controller, seen(), seen(), seen(), seen()) == [Setting(4), Setting(2), Setting(2), Setting(2)]


def test_the_reason_for_going_back_has_its_numbers():
    controller = AdaptivePolicy(Setting(2))
    controller.decide(seen())
    back = controller.decide(seen(wait_s=4.9))
    assert str(back) == "2 workers: 4 workers gained 1.0%, less than 3%; back, and staying"


def test_depth_is_tried_after_workers_and_taken_back_in_the_same_way():
    controller = AdaptivePolicy(Setting(2))
    assert settings(controller, *[seen()] * 6) == [
        Setting(4),
        Setting(2),
        Setting(2, 4),
        Setting(2),
        Setting(2),
        Setting(2),
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_pinned_workers_are_never_touched(workers):
    controller = AdaptivePolicy(Setting(workers), workers_pinned=True)
    memory = {"batch_bytes": GB, "worker_bytes": GB, "free_bytes": 0}
    found = settings(controller, seen(), seen(), seen(**memory), seen(**memory))
    assert {setting.workers for setting in found} == {workers}


def test_a_pinned_prefetch_is_never_touched():
    controller = AdaptivePolicy(Setting(2, 5), prefetch_pinned=True)
    assert {setting.prefetch for setting in settings(controller, *[seen()] * 8)} == {5}


def test_with_everything_pinned_nothing_is_said():
    controller = AdaptivePolicy(Setting(2), workers_pinned=True, prefetch_pinned=True)
    assert controller.decide(seen()) is None


def test_no_workers_at_all_are_the_users_word():
    assert AdaptivePolicy(Setting(0), workers_pinned=True).decide(seen()) is None


def test_workers_for_which_there_is_no_room_are_not_added():
    controller = AdaptivePolicy(Setting(2), prefetch_pinned=True)
    tight = seen(batch_bytes=GB // 4, worker_bytes=GB // 4, free_bytes=6 * GB)
    decision = controller.decide(tight)
    assert decision.setting == Setting(2)
    assert "would take 4.29 GB of memory, and 6.44 GB are free" in decision.reason
    assert controller.decide(tight) is None  # said once


def test_short_memory_takes_workers_away_for_good_and_without_overlap():
    controller = AdaptivePolicy(Setting(8))
    decision = controller.decide(seen(batch_bytes=GB // 8, worker_bytes=GB // 8, free_bytes=GB // 10))
    assert decision.setting == Setting(4)
    assert not decision.overlap
    assert settings(controller, seen(free_bytes=900 * GB), seen(free_bytes=900 * GB)) == [Setting(4)] * 2


def test_short_memory_during_a_trial_ends_the_trial():
    controller = AdaptivePolicy(Setting(4))
    controller.decide(seen())
    controller.decide(seen(batch_bytes=GB, worker_bytes=GB, free_bytes=GB))
    assert settings(controller, seen(), seen()) == [Setting(4)] * 2


def test_short_memory_with_pinned_workers_is_said_once():
    controller = AdaptivePolicy(Setting(4), workers_pinned=True, prefetch_pinned=True)
    short = seen(batch_bytes=GB, worker_bytes=GB, free_bytes=GB)
    assert "num_workers is yours" in controller.decide(short).reason
    assert controller.decide(short) is None


def test_a_change_that_cannot_be_made_is_undone_and_not_tried_again():
    controller = AdaptivePolicy(Setting(2), prefetch_pinned=True)
    controller.decide(seen())
    decision = controller.refused("OSError: no more processes")
    assert decision.setting == controller.setting == Setting(2)
    assert "no more processes" in decision.reason
    assert controller.decide(seen()) is None


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
def test_whatever_happens_changes_come_to_an_end(happened, workers, workers_pinned, prefetch_pinned):
    begin = Setting(workers)
    controller = AdaptivePolicy(begin, workers_pinned=workers_pinned, prefetch_pinned=prefetch_pinned)
    found = [begin, *settings(controller, *happened)]
    changes = sum(one != other for one, other in pairwise(found))
    assert changes <= 64 + math.log2(64) + 4 + 2
    assert all(1 <= setting.workers <= 64 and 2 <= setting.prefetch <= 16 for setting in found)
    assert not workers_pinned or {setting.workers for setting in found} == {workers}
    assert not prefetch_pinned or {setting.prefetch for setting in found} == {2}


def test_among_ranks_in_step_what_a_rank_gained_shows_in_its_own_waiting():
    """The others set the pace: it waits for them in its step instead of for its data."""
    same_pace = seen(wait_s=1.0, compute_s=9.0)
    alone = AdaptivePolicy(Setting(2), prefetch_pinned=True)
    assert settings(alone, seen(), same_pace) == [Setting(4), Setting(2)]
    in_step = AdaptivePolicy(Setting(2), prefetch_pinned=True, in_step=True)
    assert settings(in_step, seen(), seen(wait_s=0.5, compute_s=9.5)) == [Setting(4), Setting(4)]
    assert settings(AdaptivePolicy(Setting(2), in_step=True), seen(), seen(wait_s=4.8)) == [Setting(4), Setting(2)]


def test_ranks_of_a_machine_divide_the_memory_to_grow_into():
    short = seen(batch_bytes=GB, free_bytes=30 * GB)
    assert AdaptivePolicy(Setting(2)).decide(short).setting == Setting(4)
    decision = AdaptivePolicy(Setting(2), ranks=2).decide(short)
    assert decision.setting == Setting(2)
    assert "would take" in str(decision)
