"""The doctor's rows as a terminal shows them: the sign alone says whether to act."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table

from penstock.plan.doctor.check import Check, CheckStatus
from penstock.report.storage import StorageRow
from penstock.report.text import table

SIGNS = {CheckStatus.GOOD: "✓", CheckStatus.ATTENTION: "!", CheckStatus.BAD: "✗", CheckStatus.UNKNOWN: "–"}


def check_table(title: str, checks: Iterable[Check]) -> Table:
    """One row each: sign, what, found, which means."""
    lines = [(SIGNS[check.mark], check.name, check.value, check.meaning) for check in checks]
    return table(title, ("", "what", "found", "which means"), lines)


def as_checks(rows: Iterable[StorageRow]) -> Iterator[Check]:
    """Rows about a storage, in the same table."""
    for row in rows:
        yield Check(row.name, row.value, row.meaning, CheckStatus.GOOD if row.ok else CheckStatus.ATTENTION)
