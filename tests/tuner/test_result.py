import msgspec
import pytest

from penstock.errors import SettingError
from penstock.tuner.result import MeasuredSetting, Setting, Tuned, TuningFindings


def tuned(**fields):
    facts = {"kwargs": {"num_workers": 2}, "samples_s": 10.0, "default_samples_s": 5.0, "measured": (), "reasons": ()}
    return Tuned(**{**facts, "seconds": 1.0, **fields})


def test_a_setting_says_what_torch_takes():
    assert Setting().kwargs() == {"num_workers": 0}
    assert Setting(3).kwargs() == {"num_workers": 3, "prefetch_factor": 2}
    assert Setting(3, 8, in_order=False).kwargs() == {"num_workers": 3, "prefetch_factor": 8, "in_order": False}


def test_a_setting_reads_well():
    assert [str(each) for each in (Setting(), Setting(1), Setting(4, 8), Setting(4, in_order=False))] == [
        "no workers",
        "1 worker",
        "4 workers, prefetch 8",
        "4 workers, out of order",
    ]


def test_a_loader_is_made_with_the_kwargs_and_what_the_user_adds():
    made = []
    tuned(make=made.append).loader(num_workers=3, pin_memory=True)
    assert made == [{"num_workers": 3, "pin_memory": True}]


def test_findings_without_a_dataset_make_no_loader():
    with pytest.raises(SettingError, match="no dataset"):
        tuned().loader()


def test_findings_can_be_written_down_and_read_back():
    row = MeasuredSetting(setting=Setting(2), how="failed", note="it fell over")
    findings = tuned(measured=(row,), make=print, remembered=True).findings()
    assert type(findings) is TuningFindings
    assert msgspec.json.decode(msgspec.json.encode(findings), type=TuningFindings) == findings
