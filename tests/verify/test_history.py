"""The history of verifications, also in a damaged file."""

import os

import pytest

from penstock.core.plan import Plan
from penstock.verify import history
from penstock.verify.history import (
    VERIFICATIONS_MIN,
    VerificationEntry,
    append_entry,
    make_entry,
    model_error,
    plan_digest,
    prediction_error,
    read_history,
)
from penstock.verify.judge import Judgement


def entry(gain=0.2, predicted_gain=0.3, **fields):
    numbers = {"before_samples_s": 100.0, "after_samples_s": 100.0 * (1 + gain)}
    return VerificationEntry(
        at_unix_s=1.7e9, plan="abc", answer="better", gain=gain, predicted_gain=predicted_gain, **numbers, **fields
    )


def test_history_is_empty_at_first():
    assert read_history() == history.VerificationHistory(())
    assert model_error(()) is None


def test_entries_are_read_in_the_order_in_which_they_were_appended(private_cache):
    first, second = entry(), entry(gain=-0.1, low=0.8, high=0.95, cold=True, command=("python", "train.py"))
    assert append_entry(first) == append_entry(second) == private_cache / "verify" / "history.jsonl"
    assert read_history().entries == (first, second)
    if os.name == "posix":
        assert os.stat(append_entry(first)).st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [b"\xff\xfe{", b'{"at_unix_s": "no"}', b"[" * 5000, b'{"plan":"x"}', b"null"])
def test_damaged_lines_are_skipped_and_counted(damage):
    path = append_entry(entry())
    with open(path, "ab") as file:
        file.write(damage + b"\n\n")
    append_entry(entry(gain=0.5))
    found = read_history()
    assert [kept.gain for kept in found.entries] == [0.2, 0.5]
    assert found.skipped == 1


def test_line_that_was_cut_short_does_not_damage_the_next():
    path = append_entry(entry())
    os.truncate(path, path.stat().st_size - 5)
    append_entry(entry(gain=0.5))
    found = read_history()
    assert ([kept.gain for kept in found.entries], found.skipped) == ([0.5], 1)


def test_only_the_end_of_a_long_file_is_read(monkeypatch):
    for gain in (0.1, 0.2, 0.3):
        path = append_entry(entry(gain=gain))
    monkeypatch.setattr(history, "MAX_READ_BYTES", path.stat().st_size // 2)
    found = read_history()
    assert [kept.gain for kept in found.entries] == [0.3]
    assert found.skipped == 0


def test_error_of_the_model_is_that_of_the_rate():
    entries = [entry(0.0, 0.1), entry(0.25, 0.0), entry(1.0, 1.0), entry(0.5, None)]
    assert [kept.error for kept in entries] == [pytest.approx(0.1), pytest.approx(-0.2), 0.0, None]
    error = model_error(entries)
    assert (error.count, error.median, error.within) == (3, pytest.approx(0.1), pytest.approx(2 / 3))


def test_digest_depends_on_machine_dataset_and_settings_but_not_on_their_order():
    def plan(fingerprint, **dataloader):
        return Plan(source="recording", fingerprint=fingerprint, dataloader=dataloader)

    machine = {"machine": {"usable_cores": 2, "platform": "Linux"}}
    reordered = {"machine": {"platform": "Linux", "usable_cores": 2}}
    same = plan_digest(plan(machine, num_workers=2, in_order=False))
    assert same == plan_digest(plan(reordered, in_order=False, num_workers=2))
    assert same != plan_digest(plan(machine, num_workers=3, in_order=False))
    assert same != plan_digest(plan({}, num_workers=2, in_order=False))


def test_entry_contains_the_judgement():
    judgement = Judgement(
        answer="worse", before_samples_s=100.0, after_samples_s=80.0, low=0.7, high=0.9, predicted_gain=0.1
    )
    plan = Plan(source="recording", fingerprint={}, dataloader={"num_workers": 2})
    made = make_entry(plan, judgement, ["python", "train.py"], cold=True)
    append_entry(made)
    (kept,) = read_history().entries
    assert kept == made
    assert (kept.answer, kept.gain, kept.dataloader) == ("worse", pytest.approx(-0.2), {"num_workers": 2})
    assert kept.error == pytest.approx(1.1 / 0.8 - 1)


def test_the_spread_of_predictions_is_known_from_five_on():
    for _ in range(VERIFICATIONS_MIN - 1):
        append_entry(entry(gain=0.0, predicted_gain=0.1))
    assert prediction_error() is None
    append_entry(entry(gain=0.0, predicted_gain=9.0))  # one large error does not count more than others
    assert 0.12 < prediction_error() < 0.16
