"""What a rule answers: a cause it suspects, with the cure to try in the model; or a look-alike it rejects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.diagnose.evidence.evidence import Evidence
from penstock.model.workload import Workload

Remedy = Callable[[Workload], Workload]
"""The run as it would be without the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A cause, before it is known what removing it would give."""

    strength: float
    """0 to 1: how well the evidence tells it from its look-alikes."""
    summary: str
    evidence: tuple[str, ...]
    advice: str
    cure: Remedy | None = None
    """For the model; None where `gain` is given outright."""
    gain: float | None = None
    """For causes that plain arithmetic answers."""
    experiment: str = ""


@dataclass(frozen=True, slots=True)
class RuledOut:
    """It would look like this, but it is not: why."""

    why: str


Answer = Suspect | RuledOut | None
Rule = Callable[[Evidence], Answer]
