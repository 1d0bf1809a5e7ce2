"""One row of the doctor's table: a name, the value found, its meaning for training, and whether to act."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NOT_KNOWN = "not known"


class CheckStatus(StrEnum):
    """Whether a row needs action; `penstock doctor --json` prints the values."""

    GOOD = "good"
    ATTENTION = "look"  # glossary: allow
    """Training works, and loses something here."""
    BAD = "bad"
    """Training fails here, or is very slow."""
    UNKNOWN = "open"
    """The value is not known or does not exist, so it is not judged."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    name: str
    value: str
    meaning: str
    """One or two sentences."""
    mark: CheckStatus = CheckStatus.GOOD

    @property
    def ok(self) -> bool:
        """Whether nothing needs action; a value that is not known is no fault of the machine."""
        return self.mark in (CheckStatus.GOOD, CheckStatus.UNKNOWN)


def unknown_check(name: str, reason: str) -> Check:
    """Return a row for a value that the system does not report; this is never an error."""
    return Check(name, NOT_KNOWN, reason, CheckStatus.UNKNOWN)
