"""What one look says: a name, what was found, what it means for training, and whether somebody should act."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NOT_KNOWN = "not known"


class CheckStatus(StrEnum):
    """How a row is to be taken."""

    GOOD = "good"
    LOOK = "look"
    """Training works, and loses something here."""
    BAD = "bad"
    """Training fails here, or crawls."""
    OPEN = "open"
    """Not known, or not there: nothing to judge."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    name: str
    value: str
    meaning: str
    """One sentence, or two."""
    mark: CheckStatus = CheckStatus.GOOD

    @property
    def ok(self) -> bool:
        """Nothing to act on. What is not known is no fault of the machine's."""
        return self.mark in (CheckStatus.GOOD, CheckStatus.OPEN)


def not_known(name: str, why: str) -> Check:
    """The system does not tell: said, and never an error."""
    return Check(name, NOT_KNOWN, why, CheckStatus.OPEN)
