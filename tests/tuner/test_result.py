"""Settings, and the results of a tuning."""

import msgspec
import pytest

from penstock.errors import SettingError
from penstock.tuner.result import MeasuredSetting, Tuned, TuningFindings, WorkerSettings


def tuned(**fields):
    facts = {"kwargs": {"num_workers": 2}, "samples_s": 10.0, "default_samples_s": 5.0, "measured": (), "reasons": ()}
    return Tuned(**{**facts, "seconds": 1.0, **fields})


def test_settings_give_keyword_arguments_for_torch():
    assert WorkerSettings().kwargs() == {"num_workers": 0}
    assert WorkerSettings(3).kwargs() == {"num_workers": 3, "prefetch_factor": 2}
    assert WorkerSettings(3, 8, in_order=False).kwargs() == {"num_workers": 3, "prefetch_factor": 8, "in_order": False}


def test_settings_are_shown_in_words():
    assert [
        str(each)
        for each in (WorkerSettings(), WorkerSettings(1), WorkerSettings(4, 8), WorkerSettings(4, in_order=False))
    ] == [
        "no workers",
        "1 worker",
        "4 workers, prefetch 8",
        "4 workers, out of order",
    ]


def test_loader_is_made_with_the_kwargs_and_the_given_changes():
    made = []
    tuned(make=made.append).loader(num_workers=3, pin_memory=True)
    assert made == [{"num_workers": 3, "pin_memory": True}]


def test_findings_without_a_dataset_make_no_loader():
    with pytest.raises(SettingError, match="no dataset"):
        tuned().loader()


def test_findings_can_be_encoded_and_decoded():
    row = MeasuredSetting(setting=WorkerSettings(2), how="failed", note="it fell over")
    findings = tuned(measured=(row,), make=print, remembered=True).findings()
    assert type(findings) is TuningFindings
    assert msgspec.json.decode(msgspec.json.encode(findings), type=TuningFindings) == findings
