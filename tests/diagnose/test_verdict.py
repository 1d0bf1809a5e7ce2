"""From answers to a verdict: which loader is judged, what is first, what is said when nothing can be."""

from dataclasses import replace
from math import isfinite

import msgspec
import pytest
from tests.diagnose.evidence.test_evidence import WORKERS, fetch, recorded, step
from tests.support.made_recordings import Made

from penstock.diagnose import verdict
from penstock.diagnose.rules import all_rules
from penstock.diagnose.suspect import RuledOut, Suspect
from penstock.diagnose.verdict import GAIN_MAX, STEPS_MIN, diagnose
from penstock.errors import RecordingError
from penstock.recording.format import LoaderLine, Machine


def suspect(strength=0.9, gain=0.5, **more):
    fields = {"summary": "It is slow", "evidence": ("seen",), "advice": "Make it quick", "gain": gain, **more}
    return Suspect(strength=strength, **fields)


@pytest.fixture
def judged(monkeypatch):
    """The diagnosis of a run about which the rules say this."""

    def judge(wait_s=0.01, **answers):
        rules = {name: lambda evidence, answer=answer: answer for name, answer in answers.items()}
        monkeypatch.setattr(verdict, "all_rules", lambda: rules)
        return diagnose(recorded([step(at, wait_s) for at in range(40)]))

    return judge


def test_every_file_is_a_rule_with_a_page():
    assert len(all_rules()) >= 29
    for name, rule in all_rules().items():
        assert rule.__module__.endswith(f".{name}")
        assert rule.__doc__


def test_worst_first_and_sure_before_doubtful(judged):
    found = judged(little=suspect(gain=0.1), much=suspect(gain=2.0), doubtful=suspect(0.55, gain=2.1))
    assert [finding.rule for finding in found.findings] == ["much", "doubtful", "little"]
    assert found.verdict == "findings"
    assert found.sentence == (
        "It is slow (33% of the steady time is spent waiting for data; without it +200% samples/s)."
    )


@pytest.mark.parametrize(
    "answer", [None, suspect(gain=0.01), suspect(gain=0.0), suspect(gain=-0.5), suspect(gain=None)]
)
def test_what_would_gain_nothing_is_no_finding(judged, answer):
    assert judged(wait_s=0.0001, rule=answer).verdict == "healthy"


def test_look_alikes_are_told_with_why(judged):
    found = judged(wait_s=0.0, disk=RuledOut("it is idle"))
    assert [(rejected.rule, rejected.why) for rejected in found.rejected] == [("disk", "it is idle")]


def test_a_weak_suspicion_is_an_experiment_not_a_finding(judged):
    found = judged(rule=suspect(0.4, experiment="Try the other disk"))
    assert (found.verdict, found.findings, found.experiment) == ("undetermined", (), "Try the other disk")


def test_waiting_without_a_cause_is_undetermined_and_names_what_would_decide(judged):
    found = judged()
    assert found.verdict == "undetermined"
    assert found.experiment.startswith("Halve num_workers")


def test_a_gain_without_end_is_said_as_a_number(judged):
    found = judged(rule=suspect(gain=float("inf")))
    assert found.findings[0].gain == GAIN_MAX
    assert isfinite(found.findings[0].gain_high)


@pytest.mark.parametrize("count", [40, 700])
def test_a_loop_that_does_nothing_has_a_finite_gain(count):
    """Without decoding nothing would take any time at all."""
    found = diagnose(
        recorded(
            [step(at, 0.02, 0.0) for at in range(count)],
            [fetch(at, 0.02, cpu_s=0.02, worker=0) for at in range(count)],
            settings={"num_workers": 1, "prefetch_factor": 2},
            machine=Machine(cores=1, usable_cores=1),
        )
    )
    assert [(finding.rule, finding.gain, finding.gain_low) for finding in found.findings] == [
        ("decode_bound", GAIN_MAX, GAIN_MAX)
    ]


def test_nothing_iterated_over_is_undetermined():
    found = diagnose(recorded(notes=("cut short",)))
    assert (found.verdict, found.impact, found.notes) == ("undetermined", None, ("cut short",))
    assert found.experiment


@pytest.mark.parametrize("count", [1, 2, STEPS_MIN])
def test_too_few_steps_are_undetermined_but_their_cost_is_told(count):
    found = diagnose(recorded([step(at, 0.5, 0.5) for at in range(count)], settings=WORKERS))
    assert found.verdict == "undetermined"
    assert "too few" in found.sentence
    assert found.impact.waited_s == pytest.approx(count * 0.5)


def test_the_loader_that_waited_most_is_judged():
    run = Made(workers=1, cpu_s=0.05, step_s=0.01, count=60).recording()
    steps = (*run.steps, *(step(at, 0.0, 0.001, loader=1) for at in range(500)))
    found = diagnose(recorded(steps, run.fetches, loaders={**run.loaders, 1: LoaderLine(loader=1)}))
    assert found.findings[0].rule == "too_few_workers"


def test_a_few_slow_steps_of_an_evaluation_do_not_hide_the_training():
    training = [step(at, 0.0001, 0.02) for at in range(200)]
    evaluation = [step(at, 1.0, 0.01, loader=1) for at in range(5)]
    loaders = {number: LoaderLine(loader=number) for number in (0, 1)}
    found = diagnose(recorded([*training, *evaluation], loaders=loaders))
    assert found.verdict == "healthy"


def test_the_same_recording_is_judged_the_same_way_twice():
    run = Made(cores=2, cpu_s=0.2, step_s=0.01, count=80).recording()
    assert diagnose(run) == diagnose(run)


def test_a_probe_is_not_diagnosed():
    recording = Made().recording()
    probe = replace(recording, run=msgspec.structs.replace(recording.run, probe="compute"))
    with pytest.raises(RecordingError, match="not of a run"):
        diagnose(probe)
