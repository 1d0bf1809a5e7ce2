"""Figures to reach, and tables."""

from benchmarks.plan.grid import Course
from benchmarks.plan.predict import Judged
from benchmarks.plan.report import grid_findings, in_short, predict_findings
from benchmarks.result import Line, Table

from penstock.tuner.result import WorkerSettings


def judged(predicted):
    said = {"load": "a", "recorded": WorkerSettings(2), "setting": WorkerSettings(4), "binds": "cpu (laws)"}
    return Judged(**said, predicted=predicted, measured=100.0)


def ran(tuned, rates, tune_s=20.0):
    counted = {setting: [rate] * 3 for setting, rate in rates.items()}
    return Course(load="a", tuned=tuned, tune_s=tune_s, grid=tuple(counted), screened=rates, counted=counted)


def split(findings):
    found = list(findings)
    return [each for each in found if isinstance(each, Line)], [each for each in found if isinstance(each, Table)]


def test_four_near_predictions_of_five_are_enough():
    (line,), (table,) = split(predict_findings([judged(100)] * 4 + [judged(200)], {}))
    assert (line.ratio, line.reached) == (0.8, True)
    assert [row[-1] for row in table.rows] == ["✓"] * 4 + ["✗"]
    (line,), _ = split(predict_findings([judged(100)] * 3 + [judged(200)], {}))
    assert not line.reached


def test_what_was_left_out_is_in_the_table_with_the_reason():
    lines, (table,) = split(predict_findings([], {"a disk": "mounting needs root"}))
    assert lines == []
    assert table.rows[0][:2] == ("a disk", "left out: mounting needs root")
    assert all(len(row) == len(table.columns) for row in table.rows)
    _, (missing,) = split(grid_findings([], {"a disk": "mounting needs root"}))
    assert missing.rows == [("mounting needs root",)]


def test_a_good_choice_reaches_all_four_figures():
    rates = {WorkerSettings(): 50.0, WorkerSettings(1): 98.0, WorkerSettings(4): 100.0}
    lines, (table,) = split(grid_findings([ran(WorkerSettings(1), rates)], {}))
    assert [line.reached for line in lines] == [True] * 4
    assert [row[1] for row in table.rows] == ["torch's defaults, reports", "tuned", "the grid's best"]


def test_too_slow_too_many_too_late_and_slower_than_the_defaults_are_misses():
    rates = {WorkerSettings(): 100.0, WorkerSettings(8): 90.0}
    lines, _ = split(grid_findings([ran(WorkerSettings(8), rates, tune_s=100.0)], {}))
    assert [line.reached for line in lines] == [False] * 4


def test_settings_are_told_as_workers_and_prefetch():
    assert [in_short(each) for each in (WorkerSettings(), WorkerSettings(8, 4), WorkerSettings(2, in_order=False))] == [
        "0",
        "8/4",
        "2/2 out of order",
    ]
