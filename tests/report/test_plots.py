"""The data of the plots: no spike is lost, and the period of stalls is found."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.report_runs import healthy, hops_run, stalling, system_lines, torch_run

from penstock.recording.format import LoaderLine, RunLine, StepLine, SystemLine
from penstock.recording.reader import Recording
from penstock.report.plots import (
    POINTS,
    ready_batches,
    smooth,
    stall_period,
    step_strip,
    thin,
    throughput,
    timeline,
    utilisation,
)
from penstock.report.run_summary import main_evidence


def test_few_points_are_kept_as_they_are():
    plot = thin(np.arange(5.0), {"wait": np.array([0.1, 0.2, 0.3, 0.4, 0.5])})
    assert plot.x == [0, 1, 2, 3, 4]
    assert plot.series["wait"] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_thinning_keeps_every_spike_and_dip_and_limits_the_points():
    values = np.full(1_000_000, 0.05)
    values[[777, 500_001, 999_999]] = (20.0, 30.0, 40.0)
    values[250_000] = 0.001
    plot = thin(np.arange(1_000_000.0), {"wait": values})
    assert len(plot.x) == len(plot.series["wait"]) == POINTS
    assert {20.0, 30.0, 40.0, 0.001} <= set(plot.series["wait"])
    assert plot.x == sorted(plot.x)


def test_a_spike_stays_within_a_bucket_of_its_position():
    values = np.zeros(100_000)
    values[40_000] = 9.0
    plot = thin(np.arange(100_000.0), {"wait": values})
    assert abs(plot.x[plot.series["wait"].index(9.0)] - 40_000) <= 2 * 100_000 / POINTS


def test_unknown_values_are_gaps_that_json_can_express():
    many = np.full(10_000, np.nan)
    many[5000] = 3.0
    plot = thin(np.arange(10_000.0), {"ready": many, "rate": np.full(10_000, np.inf)})
    json.dumps([plot.x, plot.series], allow_nan=False)
    assert 3.0 in plot.series["ready"]
    assert set(plot.series["rate"]) == {None}


def test_batch_numbers_are_not_rounded():
    assert thin(np.array([123_456.0, 123_457.0]), {}).x == [123_456, 123_457]


@pytest.mark.parametrize(
    ("slow", "period"),
    [
        ([7, 15, 23, 31, 39], 8),
        ([7, 15, 23, 31, 40, 48, 56], 8),
        ([7, 15, 23], None),  # two gaps may be equal by chance
        ([1, 2, 3, 4, 5], None),  # all batches are slow: there is no period
        ([3, 10, 12, 40, 41], None),
        ([], None),
    ],
)
def test_the_period_is_the_gap_between_most_slow_batches(slow, period):
    assert stall_period(np.array(slow, np.int64)) == period


def test_too_few_workers_stall_once_per_round():
    strip = step_strip(main_evidence(torch_run(workers=6, batches=150)))
    assert strip.period == 6
    assert set(np.diff(strip.marks).tolist()) == {6}


def test_a_healthy_run_has_no_marks():
    strip = step_strip(main_evidence(healthy()))
    assert (strip.slow, strip.marks, strip.period) == (0, [], None)


def test_positions_count_over_epochs_and_leave_out_the_first_batch_of_each():
    recording = hops_run()
    again = tuple(
        StepLine(loader=0, epoch=1, batch=batch, at_s=40 + batch * 0.1, wait_s=0.02, step_s=0.08) for batch in range(4)
    )
    evidence = main_evidence(
        type(recording)(run=recording.run, loaders=recording.loaders, steps=recording.steps + again)
    )
    assert step_strip(evidence).plot.x == [*range(1, 300), 301, 302, 303]


def test_epochs_of_one_batch_each_are_counted_and_drawn_together():
    steps = tuple(
        StepLine(loader=0, epoch=epoch, batch=0, at_s=epoch * 1.0, wait_s=0.9 if epoch == 20 else 0.1, step_s=0.1)
        for epoch in range(40)
    )
    evidence = main_evidence(Recording(run=RunLine(), loaders={0: LoaderLine(loader=0)}, steps=steps))
    assert step_strip(evidence).plot.x == list(range(40))
    assert step_strip(evidence).marks == [20]
    assert [row[3] for row in timeline(evidence, None).loop] == [
        0
    ] * 25  # batches of 16 epochs before it, of 8 after it


def test_ready_batches_are_drawn_only_if_they_were_recorded():
    assert ready_batches(main_evidence(hops_run())) is None
    assert set(ready_batches(main_evidence(stalling())).series) == {"ready", "outstanding"}


def test_utilisation_is_in_percent_of_the_capacity():
    plot = utilisation(system_lines(3, 0.5), cores=8)
    assert plot.series["CPU"] == [81.25, 87.5, 75]
    assert plot.series["GPU"] == [50, 50, 50]
    assert plot.series["disk"] == [55, 60, 65]
    assert throughput(system_lines(3, 0.5)).series == {"disk": [220, 240, 260]}


def test_a_machine_that_was_not_sampled_has_no_plots_and_unknown_parts_have_no_series():
    assert utilisation((), cores=8) is None
    assert throughput(()) is None
    assert set(utilisation((SystemLine(at_s=1.0, cpu=1.0),), cores=0).series) == {"CPU"}


def test_time_grows_in_a_plot_even_if_the_clock_was_set_back():
    lines = tuple(SystemLine(at_s=at_s, cpu=1.0) for at_s in (5.0, 6.0, 2.0, 7.0))
    assert utilisation(lines, cores=1).x == [2, 5, 6, 7]


def test_a_thinned_series_can_have_its_mean_added():
    values = np.zeros(80_000)
    values[::8] = 1.0
    plot = thin(np.arange(80_000.0), {"wait": values}, mean_of="wait")
    assert set(plot.series["wait"]) == {0.0, 1.0}
    assert plot.series["mean"] == pytest.approx([0.125] * POINTS)


def test_rates_are_smoothed_by_means_and_unknown_values_stay_gaps():
    values = np.array([1.0, 3.0, np.nan, 5.0, np.nan, np.nan])
    assert smooth(np.arange(6.0), {"GPU": values}, points=3).series["GPU"] == [2.0, 5.0, None]


# -- the timeline -----------------------------------------------------------------------------------------------------


def test_the_timeline_contains_the_longest_wait_and_the_workers_at_that_time():
    evidence = main_evidence(stalling())
    window = timeline(evidence, 8)
    assert max(row[1] for row in window.loop) == pytest.approx(evidence.loop.wait_s.max())
    assert [name for name, _ in window.workers] == [f"worker {number}" for number in range(8)]
    assert all(start < window.seconds and start + seconds > 0
               for _, fetches in window.workers for start, seconds, _, _ in fetches)  # fmt: skip
    slow = [row[3] for row in window.loop if row[4]]
    assert set(np.diff(slow).tolist()) == {8}


def test_workers_that_do_not_fit_are_counted():
    window = timeline(main_evidence(torch_run(workers=70, batches=300, fetch_s=10)), 70)
    assert (len(window.workers), window.hidden) == (64, "6 more workers are not drawn")


def test_a_window_with_too_many_fetches_is_cut_and_notes_it():
    recording = stalling()
    many = tuple(msgspec.structs.replace(recording.fetches[20], batch=batch) for batch in range(7000))
    window = timeline(main_evidence(replace(recording, fetches=many)), 8)
    assert sum(len(fetches) for _, fetches in window.workers) == 5000
    assert window.hidden == "2,000 more batches are not drawn"
