"""The answer of a rule: a cause that it suspects, or one that it rules out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.diagnose.evidence.evidence import Evidence
from penstock.model.workload import Workload

Remedy = Callable[[Workload], Workload]
"""Returns the workload as it would be without the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A cause that a rule suspects; the gain of removing it is computed later, from `remedy`."""

    strength: float
    """0 to 1: how well the evidence distinguishes the cause from its look-alikes."""
    summary: str
    """One sentence that names the cause, with the numbers that matter."""
    evidence: tuple[str, ...]
    """Facts with their numbers."""
    advice: str
    """Changes that remove the cause."""
    remedy: Remedy | None = None
    """The edit of the workload whose gain the simulator predicts; None if `gain` is given."""
    gain: float | None = None
    """The gain of removing the cause, where plain arithmetic gives it."""
    experiment: str = ""
    """An experiment that would confirm the cause."""


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A cause that would leave similar evidence but is not present."""

    why: str


Answer = Suspect | RuledOut | None
"""None if nothing in the evidence suggests the cause."""
Rule = Callable[[Evidence], Answer]
