"""Runs in turn, played by a stage hand that writes the recording a run would leave; real ones are in tests/cli."""

import signal

import numpy as np
import pytest

from penstock.diagnose.evidence.evidence import gather
from penstock.errors import RecordingError
from penstock.recording.format import EpochStartLine, EventLine, FetchLine, LoaderLine, LoaderSetting, RunLine, StepLine
from penstock.recording.reader import load
from penstock.recording.writer import Recorder
from penstock.verify import trials
from penstock.verify.cold_cache import DroppedPages
from penstock.verify.judge import judge
from penstock.verify.trials import TrialRequest, TrialTurn, after_warm_up, least_steps, run_trials, trial_turns
from penstock.watcher.script.runner import Script, ScriptResult

SCRIPT = Script(("train.py",))
PLAN = {"num_workers": 4, "prefetch_factor": 2}


def write(path, *, workers=2, prefetch=2, steps=60, passes=1, wait_s=0.01, samples=8, paths=(), name="train", **more):
    """A run whose steps are alike; the first of a pass waits a second."""
    recorder = Recorder(path, RunLine())
    settings = {
        "num_workers": LoaderSetting(in_force=workers),
        "prefetch_factor": LoaderSetting(in_force=prefetch),
        **more,
    }
    recorder.put(LoaderLine(loader=0, name=name, type="torch", settings=settings))
    for number in range(passes):
        recorder.put(EpochStartLine(loader=0, epoch=number, at_s=0.0))
        for batch in range(steps):
            wait = 1.0 if batch == 0 else wait_s
            step = {"loader": 0, "epoch": number, "batch": batch, "at_s": float(batch)}
            recorder.put(StepLine(**step, wait_s=wait, step_s=0.01, samples=samples))
            recorder.put(FetchLine(**step, worker=0, fetch_s=0.01, read_bytes=100, device_bytes=10))
    if paths:
        recorder.put(EventLine(what="files", at_s=1.0, loader=0, worker=0, detail={"paths": list(map(str, paths))}))
    recorder.close()
    return path


class Stage:
    """Stands in for `run_script`: notes on what terms each run was, and plays what it is told to."""

    def __init__(self):
        self.terms = []
        self.before = {"workers": 2, "wait_s": 0.03}
        self.after = {"workers": 4, "wait_s": 0.01}
        self.outcome = {}
        self.printed = ""

    def __call__(self, script, record, *, live, trial):
        assert not live
        self.terms.append(trial)
        trial.output.write_text(self.printed)
        write(record, **(self.after if trial.dataloader else self.before))
        code, *how = self.outcome.get(record.stem, (0, False))
        return ScriptResult(code, (record,), *how)


@pytest.fixture
def stage(monkeypatch):
    stage = Stage()
    monkeypatch.setattr(trials, "run_script", stage)
    return stage


@pytest.fixture
def ask(tmp_path):
    def ask(**fields):
        return TrialRequest(**{"script": SCRIPT, "dataloader": PLAN, "folder": tmp_path, **fields})

    return ask


def nobody(turn):
    """Is told."""


# -- the order -----------------------------------------------------------------------------------------------------


def test_before_and_after_take_turns_behind_a_run_that_is_not_counted(stage, ask):
    told = []
    found = run_trials(ask(repeats=2, steps=50), told.append)
    assert list(map(str, told)) == ["the first run", "run 1 before", "run 1 after", "run 2 before", "run 2 after"]
    assert [dict(terms.dataloader) for terms in stage.terms] == [{}, {}, PLAN, {}, PLAN]
    assert {terms.steps for terms in stage.terms} == {50}
    assert [trial.turn for trial in found] == told[1:]
    assert [trial.rate for trial in found] == [pytest.approx(rate) for rate in (200.0, 400.0, 200.0, 400.0)]


def test_where_the_cold_files_are_known_no_run_goes_ahead(ask, tmp_path):
    assert trial_turns(ask(repeats=1, cold=True, paths=(tmp_path,))) == (TrialTurn("before", 1), TrialTurn("after", 1))
    assert trial_turns(ask()) == trial_turns(ask(repeats=3))
    assert len(trial_turns(ask(repeats=3))) == 7
    assert len(trial_turns(ask(repeats=3, cold=True))) == 7


def test_what_each_run_leaves_has_a_file_of_its_own(stage, ask, tmp_path):
    run_trials(ask(repeats=1), nobody)
    names = {"first", "before1", "after1"}
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{end}" for name in names for end in ("jsonl", "txt")}


# -- what counts ---------------------------------------------------------------------------------------------------


def evidence(tmp_path, **run):
    return gather(load(write(tmp_path / "run.jsonl", **run)))[0]


def test_warm_up_is_a_tenth_of_the_steps(tmp_path):
    kept = after_warm_up(evidence(tmp_path, workers=0, steps=100))
    assert (kept.loop.steps[0].batch, len(kept.loop.steps)) == (10, 90)


def test_warm_up_is_never_less_than_what_was_in_flight(tmp_path):
    kept = after_warm_up(evidence(tmp_path, workers=8, prefetch=4, steps=100))
    assert (kept.loop.steps[0].batch, len(kept.loop.steps)) == (32, 68)


def test_the_start_of_a_later_pass_counts_because_it_returns_with_every_epoch(tmp_path):
    kept = after_warm_up(evidence(tmp_path, workers=1, steps=20, passes=3))
    assert [step.wait_s for step in kept.loop.steps].count(1.0) == 2
    assert kept.loop.first_steps == ()


def test_no_more_than_the_steps_that_were_asked_for_count(tmp_path):
    kept = after_warm_up(evidence(tmp_path, workers=1, steps=100), 50)
    assert [kept.loop.steps[0].batch, kept.loop.steps[-1].batch] == [5, 49]


def test_a_run_that_is_all_warm_up_has_nothing_to_judge(stage, ask):
    stage.after = {"workers": 8, "steps": 10}
    found = run_trials(ask(repeats=1), nobody)
    with pytest.raises(RecordingError, match="run 1 after has 0 steps"):
        judge([found[0].side], [found[1].side])


def test_a_run_whose_samples_are_not_known_makes_all_count_batches(stage, ask):
    stage.after = {"workers": 4, "samples": None}
    found = run_trials(ask(repeats=1), nobody)
    assert {trial.unit for trial in found} == {"batches/s"}
    assert all(np.isfinite(trial.rate) for trial in found)


def test_so_many_steps_are_needed():
    assert least_steps({"num_workers": 4, "prefetch_factor": 3}) == 4 * 3 + 8 * 4
    assert least_steps({"num_workers": 0}) == 2 + 8
    assert least_steps({}) == 2 + 8


# -- notes ---------------------------------------------------------------------------------------------------------


def test_a_setting_that_did_not_come_into_force_is_told(stage, ask):
    stage.after = {"workers": 1}
    found = run_trials(ask(repeats=1), nobody)
    assert found[1].notes == ("The plan's num_workers=4 was not in force: 1 was.",)
    assert found[0].notes == ()


def test_a_plan_that_is_the_scripts_own_settings_is_told(stage, ask):
    stage.after = stage.before = {"workers": 4}
    found = run_trials(ask(repeats=1), nobody)
    assert found[1].notes == ("The plan changes nothing here: its settings are the script's own.",)


def test_what_needs_workers_is_not_missed_without_them(stage, ask):
    stage.after = {"workers": 0, "prefetch": None}
    found = run_trials(ask(repeats=1, dataloader={"num_workers": 0, "prefetch_factor": 2}), nobody)
    assert found[1].notes == ()


def test_pages_are_dropped_before_each_counted_run_once_the_files_are_known(stage, ask, tmp_path, monkeypatch):
    data = tmp_path / "data" / "a.bin"
    data.parent.mkdir()
    data.touch()
    stage.before["paths"] = [data]
    asked = []
    monkeypatch.setattr(trials, "drop", lambda files: asked.append(files) or DroppedPages(len(files), True))
    found = run_trials(ask(repeats=1, cold=True), nobody)
    assert asked == [[data], [data]]
    assert all(trial.cold for trial in found)
    assert "10% came from a block device" in found[0].notes[0]


def test_a_run_that_could_not_be_made_cold_is_called_warm_and_why(stage, ask, monkeypatch):
    monkeypatch.setattr(trials, "drop", lambda files: DroppedPages(0, False, "no permission"))
    found = run_trials(ask(repeats=1, cold=True), nobody)
    assert [trial.cold for trial in found] == [False, False]
    assert found[0].notes == ("Not cold: no permission.",)


# -- what goes wrong -----------------------------------------------------------------------------------------------


def test_a_script_that_fails_with_the_plan_says_so_in_its_own_words(stage, ask):
    stage.outcome["after1"] = (1, False)
    stage.printed = "Traceback …\n  File …\nRuntimeError: no \x1b[31m shm\n\n"
    with pytest.raises(RecordingError) as failed:
        run_trials(ask(), nobody)
    assert "with the plan's settings (run 1 after, exit code 1): RuntimeError: no \\x1b[31m shm" in str(failed.value)


def test_a_script_that_fails_anyway_fails_before_it_is_measured(stage, ask):
    stage.outcome["first"] = (-signal.SIGKILL, False)
    with pytest.raises(RecordingError, match=r"the script failed \(the first run, SIGKILL\): it printed nothing"):
        run_trials(ask(), nobody)
    assert len(stage.terms) == 1


def test_a_script_that_we_have_ended_has_not_failed(stage, ask):
    stage.outcome = dict.fromkeys(("first", "before1", "after1"), (-signal.SIGINT, True))
    assert len(run_trials(ask(repeats=1, steps=40), nobody)) == 2


@pytest.mark.parametrize("outcome", [(-signal.SIGINT, False), (130, False), (1, False, True)])
def test_a_ctrl_c_ends_all_of_it(stage, ask, outcome):
    stage.outcome["before1"] = outcome
    with pytest.raises(KeyboardInterrupt):
        run_trials(ask(), nobody)


def test_a_script_that_trains_nothing_is_refused(stage, ask):
    stage.before = {"steps": 0}
    with pytest.raises(RecordingError, match="the first run has no steps"):
        run_trials(ask(), nobody)
