"""The lines with targets and the tables of `make bench-plan`."""

from benchmarks.plan.grid import GridResult
from benchmarks.plan.predict import Comparison
from benchmarks.plan.report import grid_findings, in_short, predict_findings
from benchmarks.result import Line, Table

from penstock.tuner.result import WorkerSettings


def comparison(predicted):
    fields = {"load": "a", "recorded": WorkerSettings(2), "setting": WorkerSettings(4), "bottleneck": "cpu (laws)"}
    return Comparison(**fields, predicted=predicted, measured=100.0)


def grid_result(tuned, rates, tune_s=20.0):
    counted = {setting: [rate] * 3 for setting, rate in rates.items()}
    return GridResult(load="a", tuned=tuned, tune_s=tune_s, grid=tuple(counted), screened=rates, counted=counted)


def split(findings):
    """Return the lines and the tables."""
    findings = list(findings)
    return [each for each in findings if isinstance(each, Line)], [each for each in findings if isinstance(each, Table)]


def test_four_near_predictions_of_five_are_enough():
    (line,), (table,) = split(predict_findings([comparison(100)] * 4 + [comparison(200)], {}))
    assert (line.ratio, line.reached) == (0.8, True)
    assert [row[-1] for row in table.rows] == ["✓"] * 4 + ["✗"]
    (line,), _ = split(predict_findings([comparison(100)] * 3 + [comparison(200)], {}))
    assert not line.reached


def test_loads_that_were_left_out_are_in_the_tables_with_the_reason():
    lines, (table,) = split(predict_findings([], {"a disk": "mounting needs root"}))
    assert lines == []
    assert table.rows[0][:2] == ("a disk", "left out: mounting needs root")
    assert all(len(row) == len(table.columns) for row in table.rows)
    _, (table,) = split(grid_findings([], {"a disk": "mounting needs root"}))
    assert table.rows == [("mounting needs root",)]


def test_a_good_choice_reaches_all_four_targets():
    rates = {WorkerSettings(): 50.0, WorkerSettings(1): 98.0, WorkerSettings(4): 100.0}
    lines, (table,) = split(grid_findings([grid_result(WorkerSettings(1), rates)], {}))
    assert [line.reached for line in lines] == [True] * 4
    assert [row[1] for row in table.rows] == ["torch's defaults, reports", "tuned", "the grid's best"]


def test_a_slow_choice_with_too_many_workers_after_a_long_time_misses_all_four_targets():
    rates = {WorkerSettings(): 100.0, WorkerSettings(8): 90.0}
    lines, _ = split(grid_findings([grid_result(WorkerSettings(8), rates, tune_s=100.0)], {}))
    assert [line.reached for line in lines] == [False] * 4


def test_settings_are_shown_as_workers_and_prefetch():
    settings = WorkerSettings(), WorkerSettings(8, 4), WorkerSettings(2, in_order=False)
    assert [in_short(each) for each in settings] == ["0", "8/4", "2/2 out of order"]
