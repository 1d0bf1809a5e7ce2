import pytest

from penstock.tuner.adaptive.controller import LEAST_S, ROUNDS, StepWindow


def filled(steps, wait_s=0.5, compute_s=0.5):
    window = StepWindow()
    for _ in range(steps):
        window.note(wait_s, compute_s)
    return window


def test_a_window_is_full_after_whole_rounds_of_the_workers():
    assert not filled(ROUNDS * 3 - 1).full(3)
    assert filled(ROUNDS * 3).full(3)
    assert not filled(ROUNDS * 3 + 1).full(3)
    assert filled(ROUNDS).full(0)


def test_a_window_lasts_a_while():
    assert not filled(ROUNDS, LEAST_S / ROUNDS / 4, LEAST_S / ROUNDS / 4).full(1)


def test_a_window_begins_anew():
    window = filled(ROUNDS)
    window.reset()
    assert not window.full(1)


def test_a_pause_between_steps_counts_as_a_few_steps():
    window = filled(10, 0.1, 1.0)
    window.note(0.1, 3600.0)
    seen = window.seen(batch_bytes=1, worker_bytes=2, free_bytes=3)
    assert seen.compute_s == pytest.approx(10 + 5)
    assert seen.wait_s == pytest.approx(1.1)
    assert (seen.batches, seen.batch_bytes, seen.worker_bytes, seen.free_bytes) == (11, 1, 2, 3)
