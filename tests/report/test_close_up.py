"""The close-up shows the right window, and says what it leaves out."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.report_runs import stalling, torch_run

from penstock.report.close_up import close_up
from penstock.report.numbers import main_evidence


def test_the_close_up_holds_the_longest_wait_and_the_workers_of_that_time():
    evidence = main_evidence(stalling())
    window = close_up(evidence, 8)
    assert max(row[1] for row in window.loop) == pytest.approx(evidence.loop.wait_s.max())
    assert [name for name, _ in window.lanes] == [f"worker {number}" for number in range(8)]
    assert all(start < window.seconds and start + seconds > 0
               for _, fetches in window.lanes for start, seconds, _, _ in fetches)  # fmt: skip
    slow = [row[3] for row in window.loop if row[4]]
    assert set(np.diff(slow).tolist()) == {8}


def test_more_workers_than_fit_are_counted():
    window = close_up(main_evidence(torch_run(workers=70, batches=300, fetch_s=10)), 70)
    assert (len(window.lanes), window.hidden) == (64, "6 more workers are not drawn")


def test_a_window_of_endless_fetches_is_cut_and_says_so():
    recording = stalling()
    many = tuple(msgspec.structs.replace(recording.fetches[20], batch=batch) for batch in range(7000))
    window = close_up(main_evidence(replace(recording, fetches=many)), 8)
    assert sum(len(fetches) for _, fetches in window.lanes) == 5000
    assert window.hidden == "2,000 more batches are not drawn"
