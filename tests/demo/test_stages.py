"""One run of the training, simulated; real ones are in tests/cli/test_demo.py."""

import signal

import pytest

from penstock.demo import stages as stages_module
from penstock.demo.stages import FIRST_STEPS, OTHER_PIXELS, SAME_INPUTS, Stage, loss_agreement, run_stage
from penstock.errors import PenstockError
from penstock.recording.format import EpochStartLine, LoaderLine, LoaderSetting, RunLine, StepLine
from penstock.recording.writer import Recorder
from penstock.watcher.script.runner import ScriptResult

STAGE = Stage(name="tuned", title="as planned", arguments={"shards": "a/", "size": 64}, dataloader={"num_workers": 3})


@pytest.fixture
def simulate(monkeypatch):
    """Return a function that replaces `run_script` by one that writes a recording and returns a given exit code."""
    calls = []

    def simulate(code=0, steps=40, interrupted=False):
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

        monkeypatch.setattr(stages_module, "run_script", run_script)
        return calls

    return simulate


def test_a_stage_runs_the_script_with_its_arguments_and_the_plans_settings(simulate, tmp_path):
    calls = simulate()
    run_stage(STAGE, tmp_path)
    ((script, trial),) = calls
    losses = str(tmp_path / "tuned.losses.json")
    assert script.argv[0].endswith("train.py")
    assert script.argv[1:] == ("--shards", "a/", "--size", "64", "--losses", losses)
    assert (trial.dataloader, trial.output) == ({"num_workers": 3}, tmp_path / "tuned.txt")


def test_the_warm_up_is_excluded_from_the_results(simulate, tmp_path):
    simulate()
    measured = run_stage(STAGE, tmp_path)
    assert measured.samples_s == pytest.approx(8 / 0.04)
    assert measured.wait_share == pytest.approx(0.75)
    assert (measured.workers, measured.losses) == (3, (0.5, 0.25))


@pytest.mark.parametrize(("code", "interrupted"), [(-signal.SIGINT, False), (130, False), (1, True)])
def test_an_interrupted_training_interrupts_the_demo(simulate, tmp_path, code, interrupted):
    simulate(code, interrupted=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_stage(STAGE, tmp_path)


def test_the_error_of_a_failed_training_names_the_file_with_its_output(simulate, tmp_path):
    simulate(1)
    with pytest.raises(PenstockError, match="as planned, exit code 1") as caught:
        run_stage(STAGE, tmp_path)
    assert str(tmp_path / "tuned.txt") in str(caught.value)


def test_a_training_that_ends_in_its_warm_up_is_an_error_with_advice(simulate, tmp_path):
    simulate(steps=6)
    with pytest.raises(PenstockError, match=r"too few steps to measure anything \(as planned\).*--duration"):
        run_stage(STAGE, tmp_path)


# -- losses -----------------------------------------------------------------------------------------------------------


def test_losses_are_compared_over_the_common_steps():
    found = loss_agreement([1.0, 0.5, 0.25], [1.0, 0.5], same_pixels=True)
    assert (found.steps, found.largest, found.agrees, str(found)) == (2, 0.0, True, "the same")


@pytest.mark.parametrize(("same_pixels", "tolerance"), [(True, SAME_INPUTS), (False, OTHER_PIXELS)])
def test_a_difference_is_a_share_of_the_first_loss_and_has_a_tolerance(same_pixels, tolerance):
    close = loss_agreement([4.0, 2.0], [4.0, 2.0 + tolerance], same_pixels=same_pixels)
    assert close.largest == pytest.approx(tolerance / 2)
    assert close.agrees
    far = loss_agreement([4.0, 2.0], [4.0, 2.0 + 3 * tolerance], same_pixels=same_pixels)
    assert not far.agrees
    assert str(far).startswith("DIFFER")


def test_without_a_common_step_there_is_no_agreement():
    found = loss_agreement([1.0], [], same_pixels=False)
    assert (found.agrees, str(found)) == (False, "NONE")


def test_a_loss_that_is_nan_never_agrees():
    assert not loss_agreement([1.0, 1.0], [1.0, float("nan")], same_pixels=True).agrees


def test_only_the_first_steps_are_compared_for_other_pixels():
    before, after = [1.0] * 100, [1.0] * FIRST_STEPS + [2.0] * 100
    found = loss_agreement(before, after, same_pixels=False)
    assert (found.steps, found.largest) == (FIRST_STEPS, 0.0)
    assert not loss_agreement(before, after, same_pixels=True).agrees
