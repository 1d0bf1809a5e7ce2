import io

from rich.console import Console

from penstock.plan.doctor.check import Check, CheckStatus
from penstock.report.doctor import SIGNS, as_checks, check_table
from penstock.report.storage import StorageRow


def shown(title, checks):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(check_table(title, checks))
    return console.export_text()


def test_every_mark_has_a_sign_of_its_own():
    assert set(SIGNS) == set(CheckStatus)
    assert len(set(SIGNS.values())) == len(CheckStatus)


def test_rows_begin_with_their_sign_and_fit_into_80_columns():
    text = shown("this machine", [Check(f"row {mark}", "found", "It means much. " * 9, mark) for mark in CheckStatus])
    assert [line.split()[0] for line in text.splitlines() if "row " in line] == ["✓", "!", "✗", "–"]
    assert max(len(line) for line in text.splitlines()) <= 80


def test_names_are_shown_not_obeyed():
    text = shown("[bold]\x1b[31m", [Check("[red]x", "\x1b[2J", "Means.")])
    assert "[bold]\\x1b[31m" in text
    assert "[red]x" in text
    assert "\x1b" not in text


def test_rows_about_a_storage_become_checks():
    found = list(as_checks([StorageRow("kind", "nvme", "Fast."), StorageRow("random", "slow", "Seeks.", ok=False)]))
    assert [check.mark for check in found] == [CheckStatus.GOOD, CheckStatus.ATTENTION]
    assert (found[0].name, found[0].value, found[0].meaning) == ("kind", "nvme", "Fast.")
