"""What is kept of verifications, whatever becomes of the file."""

import os

import pytest

from penstock.core.plan import Plan
from penstock.verify import history
from penstock.verify.history import VerificationEntry, append, entry_of, fingerprint_of, model_error, read
from penstock.verify.judge import Judgement


def entry(gain=0.2, predicted_gain=0.3, **fields):
    numbers = {"before_samples_s": 100.0, "after_samples_s": 100.0 * (1 + gain)}
    return VerificationEntry(
        at_unix_s=1.7e9, plan="abc", answer="better", gain=gain, predicted_gain=predicted_gain, **numbers, **fields
    )


def test_nothing_is_kept_at_first():
    assert read() == history.VerificationHistory(())
    assert model_error(()) is None


def test_what_is_appended_is_read_back_in_order(private_cache):
    first, second = entry(), entry(gain=-0.1, low=0.8, high=0.95, cold=True, command=("python", "train.py"))
    assert append(first) == append(second) == private_cache / "verify" / "history.jsonl"
    assert read().entries == (first, second)
    if os.name == "posix":
        assert os.stat(append(first)).st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [b"\xff\xfe{", b'{"at_unix_s": "no"}', b"[" * 5000, b'{"plan":"x"}', b"null"])
def test_damaged_lines_are_skipped_and_counted(damage):
    path = append(entry())
    with open(path, "ab") as file:
        file.write(damage + b"\n\n")
    append(entry(gain=0.5))
    found = read()
    assert [kept.gain for kept in found.entries] == [0.2, 0.5]
    assert found.skipped == 1


def test_a_line_cut_short_costs_only_itself():
    path = append(entry())
    os.truncate(path, path.stat().st_size - 5)
    append(entry(gain=0.5))
    found = read()
    assert ([kept.gain for kept in found.entries], found.skipped) == ([0.5], 1)


def test_of_an_endless_file_the_end_is_read(monkeypatch):
    for gain in (0.1, 0.2, 0.3):
        path = append(entry(gain=gain))
    monkeypatch.setattr(history, "READ_BYTES", path.stat().st_size // 2)
    found = read()
    assert [kept.gain for kept in found.entries] == [0.3]
    assert found.skipped == 0


def test_the_models_error_is_that_of_the_rate():
    entries = [entry(0.0, 0.1), entry(0.25, 0.0), entry(1.0, 1.0), entry(0.5, None)]
    assert [kept.error for kept in entries] == [pytest.approx(0.1), pytest.approx(-0.2), 0.0, None]
    error = model_error(entries)
    assert (error.count, error.median, error.within) == (3, pytest.approx(0.1), pytest.approx(2 / 3))


def test_a_fingerprint_is_of_machine_data_and_settings_not_of_their_order():
    def plan(fingerprint, **dataloader):
        return Plan(source="recording", fingerprint=fingerprint, dataloader=dataloader)

    machine = {"machine": {"usable_cores": 2, "platform": "Linux"}}
    turned = {"machine": {"platform": "Linux", "usable_cores": 2}}
    same = fingerprint_of(plan(machine, num_workers=2, in_order=False))
    assert same == fingerprint_of(plan(turned, in_order=False, num_workers=2))
    assert same != fingerprint_of(plan(machine, num_workers=3, in_order=False))
    assert same != fingerprint_of(plan({}, num_workers=2, in_order=False))


def test_an_entry_says_what_was_judged():
    judgement = Judgement(
        answer="worse", before_samples_s=100.0, after_samples_s=80.0, low=0.7, high=0.9, predicted_gain=0.1
    )
    plan = Plan(source="recording", fingerprint={}, dataloader={"num_workers": 2})
    made = entry_of(plan, judgement, ["python", "train.py"], cold=True)
    append(made)
    (kept,) = read().entries
    assert kept == made
    assert (kept.answer, kept.gain, kept.dataloader) == ("worse", pytest.approx(-0.2), {"num_workers": 2})
    assert kept.error == pytest.approx(1.1 / 0.8 - 1)
