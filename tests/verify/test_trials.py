"""Runs in turns, with a fake script runner that writes the recording of a run; real runs are in tests/cli."""

import signal

import numpy as np
import pytest

from penstock.diagnose.evidence.evidence import gather
from penstock.errors import RecordingError, SettingError
from penstock.recording.format import EpochStartLine, EventLine, FetchLine, LoaderLine, LoaderSetting, RunLine, StepLine
from penstock.recording.reader import load
from penstock.recording.writer import Recorder
from penstock.verify import trials
from penstock.verify.cold_cache import DroppedPages
from penstock.verify.judge import judge
from penstock.verify.trials import ScheduledRun, TrialRequest, after_warm_up, min_steps, run_trials, schedule_runs
from penstock.watcher.script.runner import Script, ScriptResult

SCRIPT = Script(("train.py",))
PLAN = {"num_workers": 4, "prefetch_factor": 2}


def write(path, *, workers=2, prefetch=2, steps=60, passes=1, wait_s=0.01, samples=8, paths=(), name="train", **more):
    """Write the recording of a run whose steps are alike; the first of an epoch waits a second."""
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


class FakeRunner:
    """A replacement of `run_script` that notes the options of each run and writes the recording to return."""

    def __init__(self):
        self.options = []
        self.before = {"workers": 2, "wait_s": 0.03}
        self.after = {"workers": 4, "wait_s": 0.01}
        self.outcome = {}
        self.printed = ""

    def __call__(self, script, record, *, live, trial):
        assert not live
        self.options.append(trial)
        trial.output.write_text(self.printed)
        write(record, **(self.after if trial.dataloader else self.before))
        code, *how = self.outcome.get(record.stem, (0, False))
        return ScriptResult(code, (record,), *how)


@pytest.fixture
def runner(monkeypatch):
    runner = FakeRunner()
    monkeypatch.setattr(trials, "run_script", runner)
    return runner


@pytest.fixture
def request_with(tmp_path):
    def make(**fields):
        return TrialRequest(**{"script": SCRIPT, "dataloader": PLAN, "folder": tmp_path, **fields})

    return make


def ignore(run):
    """Do nothing at the start of a run."""


# -- the order -----------------------------------------------------------------------------------------------------


def test_runs_before_and_after_alternate_after_an_uncounted_run(runner, request_with):
    started = []
    found = run_trials(request_with(repeats=2, steps=50), started.append)
    assert list(map(str, started)) == ["the first run", "run 1 before", "run 1 after", "run 2 before", "run 2 after"]
    assert [dict(options.dataloader) for options in runner.options] == [{}, {}, PLAN, {}, PLAN]
    assert {options.steps for options in runner.options} == {50}
    assert [trial.run for trial in found] == started[1:]
    assert [trial.rate for trial in found] == [pytest.approx(rate) for rate in (200.0, 400.0, 200.0, 400.0)]


def test_no_uncounted_run_is_needed_if_the_files_are_given(request_with, tmp_path):
    assert schedule_runs(request_with(repeats=1, cold=True, paths=(tmp_path,))) == (
        ScheduledRun("before", 1),
        ScheduledRun("after", 1),
    )
    assert schedule_runs(request_with()) == schedule_runs(request_with(repeats=3))
    assert len(schedule_runs(request_with(repeats=3))) == 7
    assert len(schedule_runs(request_with(repeats=3, cold=True))) == 7


def test_each_run_has_its_own_files(runner, request_with, tmp_path):
    run_trials(request_with(repeats=1), ignore)
    names = {"first", "before1", "after1"}
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{end}" for name in names for end in ("jsonl", "txt")}


# -- what counts ---------------------------------------------------------------------------------------------------


def evidence(tmp_path, **run):
    return gather(load(write(tmp_path / "run.jsonl", **run)))[0]


def test_warm_up_is_a_tenth_of_the_steps(tmp_path):
    kept = after_warm_up(evidence(tmp_path, workers=0, steps=100))
    assert (kept.loop.steps[0].batch, len(kept.loop.steps)) == (10, 90)


def test_warm_up_includes_the_batches_in_flight(tmp_path):
    kept = after_warm_up(evidence(tmp_path, workers=8, prefetch=4, steps=100))
    assert (kept.loop.steps[0].batch, len(kept.loop.steps)) == (32, 68)


def test_start_of_a_later_epoch_counts(tmp_path):
    kept = after_warm_up(evidence(tmp_path, workers=1, steps=20, passes=3))
    assert [step.wait_s for step in kept.loop.steps].count(1.0) == 2
    assert kept.loop.first_steps == ()


def test_no_more_than_the_requested_steps_count(tmp_path):
    kept = after_warm_up(evidence(tmp_path, workers=1, steps=100), 50)
    assert [kept.loop.steps[0].batch, kept.loop.steps[-1].batch] == [5, 49]


def test_run_without_steps_after_the_warm_up_cannot_be_judged(runner, request_with):
    runner.after = {"workers": 8, "steps": 10}
    found = run_trials(request_with(repeats=1), ignore)
    with pytest.raises(RecordingError, match="run 1 after has 0 steps"):
        judge([found[0].measure], [found[1].measure])


def test_all_runs_count_batches_if_samples_of_one_are_unknown(runner, request_with):
    runner.after = {"workers": 4, "samples": None}
    found = run_trials(request_with(repeats=1), ignore)
    assert {trial.unit for trial in found} == {"batches/s"}
    assert all(np.isfinite(trial.rate) for trial in found)


def test_minimum_of_steps_depends_on_workers_and_prefetch():
    assert min_steps({"num_workers": 4, "prefetch_factor": 3}) == 4 * 3 + 8 * 4
    assert min_steps({"num_workers": 0}) == 2 + 8
    assert min_steps({}) == 2 + 8


# -- notes ---------------------------------------------------------------------------------------------------------


def test_setting_that_is_not_in_force_is_noted(runner, request_with):
    runner.after = {"workers": 1}
    found = run_trials(request_with(repeats=1), ignore)
    assert found[1].notes == ("The plan's num_workers=4 was not in force: 1 was.",)
    assert found[0].notes == ()


def test_a_plan_that_changes_nothing_is_refused_after_the_first_run(runner, request_with):
    runner.after = runner.before = {"workers": 4}
    started = []
    with pytest.raises(SettingError, match="the plan changes nothing"):
        run_trials(request_with(repeats=1), started.append)
    assert len(started) == 1


def test_worker_settings_are_not_expected_without_workers(runner, request_with):
    runner.after = {"workers": 0, "prefetch": None}
    found = run_trials(request_with(repeats=1, dataloader={"num_workers": 0, "prefetch_factor": 2}), ignore)
    assert found[1].notes == ()


def test_pages_are_dropped_before_each_counted_run(runner, request_with, tmp_path, monkeypatch):
    data = tmp_path / "data" / "a.bin"
    data.parent.mkdir()
    data.touch()
    runner.before["paths"] = [data]
    asked = []
    monkeypatch.setattr(trials, "drop_files", lambda files: asked.append(files) or DroppedPages(len(files), True))
    found = run_trials(request_with(repeats=1, cold=True), ignore)
    assert asked == [[data], [data]]
    assert all(trial.cold for trial in found)
    assert "10% came from a block device" in found[0].notes[0]


def test_run_with_a_warm_cache_is_noted_with_the_reason(runner, request_with, monkeypatch):
    monkeypatch.setattr(trials, "drop_files", lambda files: DroppedPages(0, False, "no permission"))
    found = run_trials(request_with(repeats=1, cold=True), ignore)
    assert [trial.cold for trial in found] == [False, False]
    assert found[0].notes == ("Not cold: no permission.",)


# -- what goes wrong -----------------------------------------------------------------------------------------------


def test_failure_with_the_plan_is_reported_with_the_message_of_the_script(runner, request_with):
    runner.outcome["after1"] = (1, False)
    runner.printed = "Traceback …\n  File …\nRuntimeError: no \x1b[31m shm\n\n"
    with pytest.raises(RecordingError) as failed:
        run_trials(request_with(), ignore)
    assert "with the plan's settings (run 1 after, exit code 1): RuntimeError: no \\x1b[31m shm" in str(failed.value)


def test_script_that_always_fails_does_so_in_the_uncounted_run(runner, request_with):
    runner.outcome["first"] = (-signal.SIGKILL, False)
    with pytest.raises(RecordingError, match=r"the script failed \(the first run, SIGKILL\): it printed nothing"):
        run_trials(request_with(), ignore)
    assert len(runner.options) == 1


def test_script_that_was_stopped_after_its_steps_has_not_failed(runner, request_with):
    runner.outcome = dict.fromkeys(("first", "before1", "after1"), (-signal.SIGINT, True))
    assert len(run_trials(request_with(repeats=1, steps=40), ignore)) == 2


@pytest.mark.parametrize("outcome", [(-signal.SIGINT, False), (130, False), (1, False, True)])
def test_interrupt_ends_all_runs(runner, request_with, outcome):
    runner.outcome["before1"] = outcome
    with pytest.raises(KeyboardInterrupt):
        run_trials(request_with(), ignore)


def test_script_without_steps_is_refused(runner, request_with):
    runner.before = {"steps": 0}
    with pytest.raises(RecordingError, match="the first run has no steps"):
        run_trials(request_with(), ignore)
