"""One run of the training, played: real ones are in tests/cli/test_demo.py."""

import signal

import pytest

from penstock.demo import stages as room
from penstock.demo.stages import Stage, run_stage
from penstock.errors import PenstockError
from penstock.recording.format import EpochStartLine, LoaderLine, LoaderSetting, RunLine, StepLine
from penstock.recording.writer import Recorder
from penstock.watcher.script.runner import ScriptResult

STAGE = Stage(name="tuned", title="as planned", arguments={"shards": "a/", "size": 64}, dataloader={"num_workers": 3})


@pytest.fixture
def play(monkeypatch):
    """Stands in for `run_script`: writes what a run would leave, and ends with the code it is given."""
    calls = []

    def play(code=0, steps=40, interrupted=False):
        def run_script(script, record, *, live, trial):
            calls.append((script, trial))
            recorder = Recorder(record, RunLine())
            recorder.put(LoaderLine(loader=0, type="torch", settings={"num_workers": LoaderSetting(in_force=3)}))
            recorder.put(EpochStartLine(loader=0, epoch=0, at_s=0.0))
            for batch in range(steps):
                wait_s = 1.0 if batch < 6 else 0.03
                recorder.put(StepLine(loader=0, batch=batch, at_s=float(batch), wait_s=wait_s, step_s=0.01, samples=8))
            recorder.close()
            record.with_name("tuned.losses.json").write_text("[0.5, 0.25]")
            return ScriptResult(code, (record,), interrupted=interrupted)

        monkeypatch.setattr(room, "run_script", run_script)
        return calls

    return play


def test_a_stage_runs_the_script_with_its_arguments_and_the_plans_settings(play, tmp_path):
    calls = play()
    run_stage(STAGE, tmp_path)
    ((script, trial),) = calls
    losses = str(tmp_path / "tuned.losses.json")
    assert script.argv[0].endswith("train.py")
    assert script.argv[1:] == ("--shards", "a/", "--size", "64", "--losses", losses)
    assert (trial.dataloader, trial.output) == ({"num_workers": 3}, tmp_path / "tuned.txt")


def test_what_is_measured_leaves_the_warm_up_out(play, tmp_path):
    play()
    measured = run_stage(STAGE, tmp_path)
    assert measured.samples_s == pytest.approx(8 / 0.04)
    assert measured.wait_share == pytest.approx(0.75)
    assert (measured.workers, measured.losses) == (3, (0.5, 0.25))


@pytest.mark.parametrize(("code", "interrupted"), [(-signal.SIGINT, False), (130, False), (1, True)])
def test_an_interrupted_training_interrupts_the_demo(play, tmp_path, code, interrupted):
    play(code, interrupted=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_stage(STAGE, tmp_path)


def test_a_training_that_fails_is_told_with_the_place_of_its_output(play, tmp_path):
    play(1)
    with pytest.raises(PenstockError, match="as planned, exit code 1") as caught:
        run_stage(STAGE, tmp_path)
    assert str(tmp_path / "tuned.txt") in str(caught.value)


def test_a_training_that_does_not_get_beyond_its_warm_up_is_told_to_take_longer(play, tmp_path):
    play(steps=6)
    with pytest.raises(PenstockError, match=r"too few steps to measure anything \(as planned\).*--seconds"):
        run_stage(STAGE, tmp_path)
