"""The account of a run: every second belongs to one kind of time, in every recording."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.diagnose.evidence.test_evidence import any_recording, recorded, step
from tests.support.all_recordings import NAMES, recording_named
from tests.support.timm_recordings import EVALUATION_STEP_S, EVALUATION_STEPS, SETUP_S, TimmRun

from penstock.diagnose.evidence.account import (
    BETWEEN,
    CHECKPOINTS,
    COMPUTING,
    EVALUATION,
    FIRST_STEPS,
    KINDS,
    SETUP,
    STARTS,
    WAITING,
    account_of,
)
from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import diagnose
from penstock.recording.format import EventLine, LoaderLine


def account(recording, loader=0):
    found = {evidence.loader.loader: evidence for evidence in gather(recording)}
    return account_of(found.pop(loader), list(found.values()))


@pytest.mark.parametrize("name", NAMES)
def test_the_seconds_of_every_recording_add_up_to_its_run(name):
    recording = recording_named(name)
    last_s = max(step.at_s + step.wait_s + step.step_s for step in recording.steps)
    run_s = max(last_s, recording.end.at_s if recording.end else 0.0)
    shares = diagnose(recording).account
    assert sum(shares.values()) == pytest.approx(run_s, rel=1e-6)
    assert min(shares.values()) >= 0


@settings(max_examples=60, phases=set(Phase) - {Phase.explain}, suppress_health_check=list(HealthCheck))
@given(any_recording())
def test_the_seconds_of_any_recording_add_up_to_its_run(recording):
    loaders = gather(recording)
    for evidence in loaders:
        found = account_of(evidence, [other for other in loaders if other is not evidence])
        assert list(found.seconds) == list(KINDS)
        assert sum(found.seconds.values()) == pytest.approx(found.run_s, rel=1e-6, abs=1e-6)
        assert min(found.seconds.values()) >= -1e-6


def test_a_run_with_a_slow_step_and_validations_is_divided_by_kind():
    run = TimmRun()
    seconds = account(run.recording()).seconds
    assert seconds[SETUP] == pytest.approx(SETUP_S)
    assert seconds[EVALUATION] == pytest.approx(run.epochs * EVALUATION_STEPS * (EVALUATION_STEP_S + 0.01), rel=0.01)
    assert seconds[FIRST_STEPS] == pytest.approx(run.slow_step_s, rel=0.05)
    assert seconds[COMPUTING] == pytest.approx(run.epochs * run.steps * run.step_s, rel=0.05)
    assert 0.4 < seconds[WAITING] / seconds[COMPUTING] < 0.8
    assert seconds[STARTS] > 3


def steps_of(loader, count=6, at_s=0.0, wait_s=0.1, step_s=0.4, **more):
    return [step(n, wait_s, step_s, at_s=at_s + n * (wait_s + step_s), loader=loader, **more) for n in range(count)]


LOADERS = {number: LoaderLine(loader=number) for number in (0, 1)}


def test_an_epoch_of_another_loader_within_one_step_is_evaluation():
    training = steps_of(0)
    training[3:] = [step(n, 0.1, 0.4, at_s=0.5 * n + (2.0 if n > 3 else 0)) for n in (3, 4, 5)]
    training[3] = step(3, 0.1, 2.4, at_s=1.5)
    seconds = account(recorded(training + steps_of(1, 4, at_s=1.8), loaders=LOADERS)).seconds
    assert seconds[EVALUATION] == pytest.approx(2.0)
    assert seconds[COMPUTING] + seconds[FIRST_STEPS] == pytest.approx(6 * 0.4)


def test_loaders_that_are_used_side_by_side_both_wait():
    beside = [step(n, 0.1, 0.4, at_s=0.1 + n * 0.5, loader=1) for n in range(6)]
    seconds = account(recorded(steps_of(0) + beside, loaders=LOADERS)).seconds
    assert seconds[EVALUATION] == 0
    assert seconds[WAITING] + seconds[STARTS] == pytest.approx(
        6 * 0.2 - 0.1
    )  # the first step is one of the first steps


def test_checkpoints_are_taken_from_their_events_wherever_they_are():
    within = EventLine(what="checkpoint", at_s=1.2, seconds=0.2)
    after = EventLine(what="checkpoint", at_s=3.1, seconds=0.5)
    second = [step(n, 0.1, 0.4, at_s=4.0 + n * 0.5, epoch=1) for n in range(3)]
    seconds = account(recorded(steps_of(0) + second, events=(within, after))).seconds
    assert seconds[CHECKPOINTS] == pytest.approx(0.7)
    assert seconds[BETWEEN] == pytest.approx(0.5)


def test_a_pause_whose_place_is_not_known_is_taken_off_computing_once():
    recording = recorded(steps_of(0, phases={"checkpoint": 0.1}))
    seconds = account(recording).seconds
    assert seconds[CHECKPOINTS] == pytest.approx(0.5)  # not of the first step, which counts as a whole
    events = tuple(EventLine(what="checkpoint", at_s=0.5 * n + 0.2, seconds=0.1) for n in range(1, 6))
    assert account(replace(recording, events=events)).seconds == pytest.approx(seconds)
