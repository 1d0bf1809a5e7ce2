import io

import pytest
from rich.console import Console

from penstock.probe.results import ScriptProbe, StepTime
from penstock.report.probes import script_probe_text

WHOLE = {"alone": StepTime(80, 0.1), "beside": StepTime(64, 0.125), "burners": 4, "samples": 16}


def text(**found):
    out = io.StringIO()
    Console(file=out, width=100).print(script_probe_text(ScriptProbe(**found)))
    return " ".join(out.getvalue().split())


def test_a_row_for_each_measurement_and_what_follows():
    told = text(data=StepTime(20, 0.4), **WHOLE)
    assert "with its own data 2.5 40 400 ms 20" in told
    assert "alone 10 160 100 ms 80" in told
    assert "beside 4 busy processes 8 128 125 ms 64" in told
    assert "With any loader at most 10 steps/s, and 8 while workers keep the cores busy." in told
    assert "With its own data a step takes 3.2 times as long" in told


def test_a_script_that_does_not_wait_is_told_so():
    assert "the step itself sets the pace" in text(data=StepTime(20, 0.101), **WHOLE)
    assert "the step itself sets the pace" in text(data=StepTime(20, 0.09), **WHOLE)


def test_between_an_idle_and_a_busy_machine_nothing_is_claimed():
    assert "this does not tell: `penstock run` does" in text(data=StepTime(20, 0.12), **WHOLE)
    assert "this does not tell" in text(data=StepTime(20, 0.126), **WHOLE)


@pytest.mark.parametrize(("found", "why"), [({}, "the script ended before"), ({"why": "a \x1b[31m"}, r"a \x1b[31m")])
def test_what_was_not_measured_is_said(found, why):
    told = text(**found)
    assert f"Not all was measured: {why}." in told
    assert "was not seen for a whole round" in told


def test_samples_that_nobody_counted_are_a_dash():
    assert "alone 10 – 100 ms 80" in text(**{**WHOLE, "samples": None})
