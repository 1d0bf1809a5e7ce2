"""Verdicts from the answers of the rules: which loader is judged, the order of findings, undetermined runs."""

from dataclasses import replace
from math import isfinite

import msgspec
import pytest
from tests.diagnose.evidence.test_evidence import WORKERS, fetch, recorded, step
from tests.support.simulated_recordings import TorchRun

from penstock.diagnose import verdict
from penstock.diagnose.gains import GAIN_MAX
from penstock.diagnose.rules import all_rules
from penstock.diagnose.suspect import RuledOut, Suspect
from penstock.diagnose.verdict import STEPS_MIN, diagnose
from penstock.errors import RecordingError
from penstock.recording.format import LoaderLine, Machine


def suspect(strength=0.9, gain=0.5, **more):
    fields = {"summary": "It is slow", "evidence": ("a fact",), "advice": "Make it fast", "gain": gain, **more}
    return Suspect(strength=strength, **fields)


@pytest.fixture
def diagnose_with(monkeypatch):
    """Return a function that diagnoses a run for which the rules give these answers."""

    def diagnose_with_answers(wait_s=0.01, **answers):
        rules = {name: lambda evidence, answer=answer: answer for name, answer in answers.items()}
        monkeypatch.setattr(verdict, "all_rules", lambda: rules)
        return diagnose(recorded([step(index, wait_s) for index in range(40)]))

    return diagnose_with_answers


def test_every_rule_is_in_the_file_of_its_name_and_has_a_docstring():
    assert len(all_rules()) >= 29
    for name, rule in all_rules().items():
        assert rule.__module__.endswith(f".{name}")
        assert rule.__doc__


def test_findings_are_sorted_by_gain_and_confidence(diagnose_with):
    found = diagnose_with(little=suspect(gain=0.1), much=suspect(gain=2.0), doubtful=suspect(0.55, gain=2.1))
    assert [finding.rule for finding in found.findings] == ["much", "doubtful", "little"]
    assert found.verdict == "findings"
    assert found.sentence == (
        "It is slow (33% of the steady time is spent waiting for data; without it ×3.0 samples/s)."
    )


@pytest.mark.parametrize(
    "answer", [None, suspect(gain=0.01), suspect(gain=0.0), suspect(gain=-0.5), suspect(gain=None)]
)
def test_a_suspect_without_a_gain_is_not_a_finding(diagnose_with, answer):
    assert diagnose_with(wait_s=0.0001, rule=answer).verdict == "healthy"


def test_ruled_out_causes_are_reported_with_the_reason(diagnose_with):
    found = diagnose_with(wait_s=0.0, disk=RuledOut("it is idle"))
    assert [(cause.rule, cause.why) for cause in found.rejected] == [("disk", "it is idle")]


def test_a_weak_suspicion_gives_an_experiment_instead_of_a_finding(diagnose_with):
    found = diagnose_with(rule=suspect(0.4, experiment="Try the other disk"))
    assert (found.verdict, found.findings, found.experiment) == ("undetermined", (), "Try the other disk")


def test_waiting_without_a_cause_is_undetermined_with_an_experiment(diagnose_with):
    found = diagnose_with()
    assert found.verdict == "undetermined"
    assert found.experiment.startswith("Halve num_workers")


def test_a_run_is_undetermined_if_most_of_its_waiting_is_unexplained_whatever_smaller_findings_there_are(diagnose_with):
    found = diagnose_with(little=suspect(gain=0.1))
    assert found.verdict == "undetermined"
    assert [finding.rule for finding in found.findings] == ["little"]
    assert found.experiment
    assert "73% of the waiting has no known cause" in found.sentence  # 9% of the time, of 33%, is explained
    assert found.account["waiting, unexplained"] > found.account["waiting: little"] > 0


def test_a_finding_is_the_verdict_if_it_explains_more_time_than_is_waited_without_a_cause(diagnose_with):
    assert diagnose_with(much=suspect(gain=0.3)).verdict == "findings"
    in_the_step = suspect(gain=None, saved_s=0.012)  # 40% of the time; the waiting, a third of it, is unexplained
    assert diagnose_with(step=in_the_step).verdict == "findings"


def test_an_infinite_gain_is_limited(diagnose_with):
    found = diagnose_with(rule=suspect(gain=float("inf")))
    assert found.findings[0].gain == GAIN_MAX
    assert isfinite(found.findings[0].gain_high)


@pytest.mark.parametrize("count", [40, 700])
def test_a_loop_without_a_step_has_a_finite_gain(count):
    """Decoding is all that takes time in this run."""
    found = diagnose(
        recorded(
            [step(index, 0.02, 0.0) for index in range(count)],
            [fetch(index, 0.02, cpu_s=0.02, worker=0) for index in range(count)],
            settings={"num_workers": 1, "prefetch_factor": 2},
            machine=Machine(cores=1, usable_cores=1),
        )
    )
    assert [(finding.rule, finding.gain) for finding in found.findings] == [("decode_bound", GAIN_MAX)]
    assert isfinite(found.findings[0].gain_low)


def test_a_recording_without_steps_is_undetermined():
    found = diagnose(recorded(notes=("cut short",)))
    assert (found.verdict, found.impact, found.notes) == ("undetermined", None, ("cut short",))
    assert found.experiment


@pytest.mark.parametrize("count", [1, 2, STEPS_MIN])
def test_too_few_steps_are_undetermined_but_their_cost_is_reported(count):
    found = diagnose(recorded([step(index, 0.5, 0.5) for index in range(count)], settings=WORKERS))
    assert found.verdict == "undetermined"
    assert "too few" in found.sentence
    assert found.impact.waited_s == pytest.approx(count * 0.5)


def test_the_loader_with_the_longest_waits_is_judged():
    run = TorchRun(workers=1, cpu_s=0.05, step_s=0.01, count=60).recording()
    steps = (*run.steps, *(step(index, 0.0, 0.001, loader=1) for index in range(500)))
    found = diagnose(recorded(steps, run.fetches, loaders={**run.loaders, 1: LoaderLine(loader=1)}))
    assert found.findings[0].rule == "too_few_workers"


def test_a_few_slow_steps_of_an_evaluation_do_not_hide_the_training():
    training = [step(index, 0.0001, 0.02) for index in range(200)]
    evaluation = [step(index, 1.0, 0.01, loader=1) for index in range(5)]
    loaders = {number: LoaderLine(loader=number) for number in (0, 1)}
    found = diagnose(recorded([*training, *evaluation], loaders=loaders))
    assert found.verdict == "healthy"


def test_a_diagnosis_is_deterministic():
    run = TorchRun(cores=2, cpu_s=0.2, step_s=0.01, count=80).recording()
    assert diagnose(run) == diagnose(run)


def test_a_probe_is_not_diagnosed():
    recording = TorchRun().recording()
    probe = replace(recording, run=msgspec.structs.replace(recording.run, probe="compute"))
    with pytest.raises(RecordingError, match="not of a run"):
        diagnose(probe)
