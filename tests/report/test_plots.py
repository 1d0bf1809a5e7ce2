"""Numbers for the plots: no spike is lost, and the stall's period is found."""

import json

import numpy as np
import pytest
from tests.support.report_runs import healthy, hops_run, machine_looks, stalling, torch_run

from penstock.recording.format import LoaderLine, RunLine, StepLine, SystemLine
from penstock.recording.reader import Recording
from penstock.report.close_up import close_up
from penstock.report.numbers import main_evidence
from penstock.report.plots import POINTS, ready, smooth, stall_period, strip, thin, throughput, utilisation


def test_few_points_are_left_as_they_are():
    plot = thin(np.arange(5.0), {"wait": np.array([0.1, 0.2, 0.3, 0.4, 0.5])})
    assert plot.x == [0, 1, 2, 3, 4]
    assert plot.series["wait"] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_thinning_keeps_every_spike_and_every_dip_and_at_most_the_points_of_a_plot():
    values = np.full(1_000_000, 0.05)
    values[[777, 500_001, 999_999]] = (20.0, 30.0, 40.0)
    values[250_000] = 0.001
    plot = thin(np.arange(1_000_000.0), {"wait": values})
    assert len(plot.x) == len(plot.series["wait"]) == POINTS
    assert {20.0, 30.0, 40.0, 0.001} <= set(plot.series["wait"])
    assert plot.x == sorted(plot.x)


def test_a_spike_stays_within_a_stretch_of_where_it_was():
    values = np.zeros(100_000)
    values[40_000] = 9.0
    plot = thin(np.arange(100_000.0), {"wait": values})
    assert abs(plot.x[plot.series["wait"].index(9.0)] - 40_000) <= 2 * 100_000 / POINTS


def test_what_is_not_known_is_a_gap_and_not_a_number_json_lacks():
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
        ([7, 15, 23], None),  # two gaps may be alike by chance
        ([1, 2, 3, 4, 5], None),  # all are slow: no period
        ([3, 10, 12, 40, 41], None),
        ([], None),
    ],
)
def test_the_period_is_the_gap_that_most_slow_batches_have(slow, period):
    assert stall_period(np.array(slow, np.int64)) == period


def test_a_short_supply_stalls_once_per_round_of_workers():
    drawn = strip(main_evidence(torch_run(workers=6, batches=150)))
    assert drawn.period == 6
    assert set(np.diff(drawn.marks).tolist()) == {6}


def test_a_healthy_run_has_no_marks():
    drawn = strip(main_evidence(healthy()))
    assert (drawn.slow, drawn.marks, drawn.period) == (0, [], None)


def test_batches_are_counted_over_passes_and_the_first_of_each_is_left_out():
    recording = hops_run()
    again = tuple(
        StepLine(loader=0, epoch=1, batch=batch, at_s=40 + batch * 0.1, wait_s=0.02, step_s=0.08) for batch in range(4)
    )
    evidence = main_evidence(
        type(recording)(run=recording.run, loaders=recording.loaders, steps=recording.steps + again)
    )
    assert strip(evidence).plot.x == [*range(1, 300), 301, 302, 303]


def test_passes_of_one_batch_each_are_numbered_and_drawn_together():
    steps = tuple(
        StepLine(loader=0, epoch=at, batch=0, at_s=at * 1.0, wait_s=0.9 if at == 20 else 0.1, step_s=0.1)
        for at in range(40)
    )
    evidence = main_evidence(Recording(run=RunLine(), loaders={0: LoaderLine(loader=0)}, steps=steps))
    assert strip(evidence).plot.x == list(range(40))
    assert strip(evidence).marks == [20]
    assert [row[3] for row in close_up(evidence, None).loop] == [0] * 25  # batches of 16 passes before, of 8 after


def test_ready_is_drawn_only_where_somebody_could_tell():
    assert ready(main_evidence(hops_run())) is None
    assert set(ready(main_evidence(stalling())).series) == {"ready", "outstanding"}


def test_utilisation_is_in_percent_of_what_there_is():
    plot = utilisation(machine_looks(3, 0.5), cores=8)
    assert plot.series["CPU"] == [81.25, 87.5, 75]
    assert plot.series["GPU"] == [50, 50, 50]
    assert plot.series["disk"] == [55, 60, 65]
    assert throughput(machine_looks(3, 0.5)).series == {"disk": [220, 240, 260]}


def test_a_machine_nobody_looked_at_has_no_plots_and_unknown_parts_no_series():
    assert utilisation((), cores=8) is None
    assert throughput(()) is None
    assert set(utilisation((SystemLine(at_s=1.0, cpu=1.0),), cores=0).series) == {"CPU"}


def test_time_only_grows_in_a_plot_even_where_the_clock_went_back():
    looks = tuple(SystemLine(at_s=at, cpu=1.0) for at in (5.0, 6.0, 2.0, 7.0))
    assert utilisation(looks, cores=1).x == [2, 5, 6, 7]


def test_a_thinned_series_can_bring_its_mean_so_that_rare_spikes_do_not_look_like_all():
    values = np.zeros(80_000)
    values[::8] = 1.0
    plot = thin(np.arange(80_000.0), {"wait": values}, mean_of="wait")
    assert set(plot.series["wait"]) == {0.0, 1.0}
    assert plot.series["mean"] == pytest.approx([0.125] * POINTS)


def test_rates_are_smoothed_by_means_and_what_nobody_saw_stays_a_gap():
    values = np.array([1.0, 3.0, np.nan, 5.0, np.nan, np.nan])
    assert smooth(np.arange(6.0), {"GPU": values}, points=3).series["GPU"] == [2.0, 5.0, None]
