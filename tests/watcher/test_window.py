"""Summaries of windows of whole rounds, and the limit above which a wait is slow."""

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.recording.format import LoaderLine, LoaderSetting, StepLine
from penstock.watcher.window import BatchWindow, BatchWindows


def step(batch, wait_s=0.001, step_s=0.1, **fields):
    return StepLine(loader=0, batch=batch, at_s=0.0, wait_s=wait_s, step_s=step_s, **fields)


def slow_batches(window, waits_s, step_s=0.1):
    return [batch for batch, wait_s in enumerate(waits_s) if window.add(step(batch, wait_s, step_s))[0]]


def summaries(window, waits_s):
    results = [window.add(step(batch, wait_s))[1] for batch, wait_s in enumerate(waits_s)]
    return [summary for summary in results if summary is not None]


@pytest.mark.parametrize(("workers", "size"), [(0, 50), (1, 50), (8, 56), (32, 64), (64, 64)])
def test_the_default_window_is_fifty_batches_rounded_up_to_whole_rounds(workers, size):
    found = summaries(BatchWindow(0, workers=workers), [0.0] * 200)
    assert [summary.batches for summary in found] == [size] * (200 // size)


def test_a_size_set_by_the_user_is_rounded_up_to_whole_rounds():
    assert summaries(BatchWindow(0, workers=8, size=20), [0.0] * 24)[0].batches == 24


def test_a_stall_once_a_round_gives_every_window_the_same_mean():
    waits_s = ([0.0] * 31 + [20.0]) * 6
    assert {summary.wait_mean_s for summary in summaries(BatchWindow(0, workers=32), waits_s)} == {0.625}
    assert len({summary.wait_mean_s for summary in summaries(BatchWindow(0, workers=0), waits_s)}) > 1


def test_the_summary_covers_the_window_alone():
    waits_s = np.random.default_rng(0).exponential(0.01, 100)
    summary = summaries(BatchWindow(0), waits_s)[1]
    latest = waits_s[50:]
    assert summary.wait_mean_s == pytest.approx(latest.mean())
    assert summary.wait_p50_s == pytest.approx(np.median(latest))
    assert summary.wait_p99_s == pytest.approx(np.percentile(latest, 99))
    assert summary.wait_max_s == latest.max()
    assert summary.wait_std_s == pytest.approx(latest.std())
    assert summary.step_mean_s == pytest.approx(0.1)
    assert summary.total == 100


def test_samples_per_second_count_waits_and_steps():
    window = BatchWindow(0, size=2)
    window.add(step(0, 0.5, 1.0, samples=10))
    assert window.add(step(1, 0.0, 0.5, samples=6))[1].samples_per_s == pytest.approx(8.0)


def test_samples_per_second_are_unknown_if_one_batch_has_no_known_size():
    window = BatchWindow(0, size=2)
    window.add(step(0, samples=10))
    assert window.add(step(1))[1].samples_per_s is None


def test_the_mean_of_a_phase_that_some_batches_have_is_over_all_batches():
    window = BatchWindow(0, size=4)
    for batch in range(3):
        window.add(step(batch, phases={"forward": 0.02}))
    summary = window.add(step(3, phases={"forward": 0.02, "checkpoint": 4.0}))[1]
    assert summary.phases == pytest.approx({"forward": 0.02, "checkpoint": 1.0})
    assert summary.numbers()["phase/checkpoint_s"] == pytest.approx(1.0)


def test_the_mean_of_a_profiled_phase_is_over_profiled_steps_only():
    window = BatchWindow(0, size=3)
    window.add(step(0, phases={"forward": 0.02, "log": 0.3}))
    window.add(step(1, profiled=False))
    assert window.add(step(2, profiled=False))[1].phases == pytest.approx({"forward": 0.02, "log": 0.1})


def test_a_window_without_profiled_steps_repeats_the_profiled_phases_of_the_one_before():
    window = BatchWindow(0, size=1)
    window.add(step(0, phases={"forward": 0.02, "log": 0.3}))
    assert window.add(step(1, profiled=False))[1].phases == {"forward": 0.02}


def test_jitter_below_a_millisecond_is_never_slow():
    waits_s = np.random.default_rng(1).choice([2e-5, 9e-4], 500, p=[0.95, 0.05])
    assert slow_batches(BatchWindow(0), waits_s, step_s=1e-4) == []


def test_a_wait_of_less_than_a_tenth_of_a_step_is_never_slow():
    assert slow_batches(BatchWindow(0), [0.0] * 40 + [0.09] + [0.11], step_s=1.0) == [41]


def test_one_stall_per_round_is_slow():
    waits_s = ([0.0004] * 31 + [20.0]) * 3
    assert slow_batches(BatchWindow(0, workers=32), waits_s, step_s=0.16) == [31, 63, 95]


def test_waits_that_are_long_but_usual_are_not_slow():
    waits_s = np.random.default_rng(2).normal(2.0, 0.1, 300)
    assert slow_batches(BatchWindow(0), [*waits_s, 4.0]) == [300]


def test_no_wait_is_slow_before_there_is_a_history():
    assert slow_batches(BatchWindow(0), [0.0, 30.0, 0.0, 0.0]) == []


def test_waits_that_become_usual_are_no_longer_slow():
    window = BatchWindow(0)
    slow = slow_batches(window, [0.001] * 256 + [1.0] * 300)
    assert slow[0] == 256
    assert slow[-1] < 256 + 200
    assert window.limit_s > 1.0


def test_a_limit_set_by_the_user_replaces_the_derived_one():
    assert slow_batches(BatchWindow(0, slow_s=0.5), [0.4, 0.6, 0.4]) == [1]


def test_the_rest_is_the_latest_whole_rounds():
    window = BatchWindow(0, workers=4)
    for batch, wait_s in enumerate([9.0, 1.0, 1.0, 1.0, 1.0]):
        window.add(step(batch, wait_s))
    rest = window.rest()
    assert (rest.batches, rest.wait_mean_s) == (4, 1.0)
    assert window.rest() is None


def test_the_rest_is_none_if_there_is_no_whole_round():
    window = BatchWindow(0, workers=4)
    window.add(step(0))
    assert window.rest() is None


def test_each_loader_has_a_window_of_its_own_rounds():
    windows = BatchWindows()
    windows.put(LoaderLine(loader=0, name="train", settings={"num_workers": LoaderSetting(requested=64, in_force=32)}))
    windows.put(LoaderLine(loader=1, name="val"))
    assert (windows.of(0).workers, windows.of(1).workers, windows.of(7).workers) == (32, 0, 0)
    for batch in range(49):
        assert windows.put(StepLine(loader=1, batch=batch, at_s=0.0, wait_s=0.0, step_s=1.0)) is None
        assert windows.put(StepLine(loader=0, batch=batch, at_s=0.0, wait_s=0.0, step_s=1.0)) is None
    full = windows.put(StepLine(loader=1, batch=49, at_s=0.0, wait_s=0.0, step_s=1.0))
    assert (full.name, full.batches) == ("val", 50)
    assert [(summary.name, summary.batches) for summary in windows.rest()] == [("train", 32)]


@pytest.mark.parametrize("settings", [{"size": 0}, {"slow_s": 0.0}, {"slow_s": float("nan")}])
def test_an_impossible_window_or_limit_is_refused(settings):
    with pytest.raises(SettingError):
        BatchWindows(**settings)
