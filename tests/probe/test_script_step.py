import pytest

from penstock.probe.results import StepTime
from penstock.probe.script_step import ScriptProbe, script_probe
from penstock.recording.format import EventLine, RunLine
from penstock.recording.reader import Recording


def told(seconds=0.0, **detail):
    return EventLine(what="probe", at_s=1.0, seconds=seconds, detail=detail)


def read(*events):
    return script_probe(Recording(run=RunLine(probe="compute"), loaders={}, events=events))


def test_stages_become_times():
    found = read(
        told(2.0, stage="data", steps=4, samples=8, device="cuda"),
        told(1.0, stage="alone", steps=10, samples=8, device="cuda"),
        told(1.5, stage="beside", steps=10, samples=8, device="cuda", burners=3),
        told(stage="end", why=""),
    )
    assert found.data == StepTime(4, 0.5)
    assert (found.step.alone, found.step.beside) == (StepTime(10, 0.1), StepTime(10, 0.15))
    assert (found.step.burners, found.step.samples, found.step.device) == (3, 8, "cuda")
    assert found.step.samples_per_s == pytest.approx(8 / 0.15)


def test_what_is_missing_is_none_and_why_is_kept():
    found = read(told(1.0, stage="alone", steps=10), told(stage="end", why="no more processes"))
    assert (found.data, found.beside, found.step, found.why) == (None, None, None, "no more processes")
    assert read() == ScriptProbe()


@pytest.mark.parametrize(
    "detail",
    [
        {},
        {"stage": "alone"},
        {"stage": "alone", "steps": 0},
        {"stage": "alone", "steps": "ten"},
        {"stage": "other", "steps": 1},
    ],
)
def test_damage_is_left_out(detail):
    assert read(told(1.0, **detail), EventLine(what="gc", at_s=1.0)) == ScriptProbe()
    assert read(told(0.0, stage="alone", steps=1)).alone is None
