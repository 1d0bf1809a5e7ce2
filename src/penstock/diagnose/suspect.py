"""The answer of a rule: a cause that it suspects, or one that it rules out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.diagnose.evidence.evidence import Evidence
from penstock.model.workload import Workload

Remedy = Callable[[Workload], Workload]
"""Returns the workload as it would be without the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A cause that a rule suspects; the gain of removing it is computed later, by `gains`."""

    strength: float
    """0 to 1: how well the evidence distinguishes the cause from its look-alikes."""
    summary: str
    """One sentence that names the cause, with the numbers that matter."""
    evidence: tuple[str, ...]
    """Facts with their numbers."""
    advice: str
    """Changes that remove the cause."""
    remedy: Remedy | None = None
    """The edit of the workload whose gain the simulator predicts; None if one of the next two is given."""
    saved_s: float | None = None
    """Seconds by which each step of the loop becomes shorter: for causes that are in the step, not in the loading."""
    gain: float | None = None
    """The gain of removing the cause, where plain arithmetic gives it."""
    gain_of_loading: bool = False
    """Whether `gain` is only that of data that comes sooner, so that the step alone limits it."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of a DataLoader whose change is the remedy, with their new values."""
    experiment: str = ""
    """An experiment that would confirm the cause."""


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A cause that would leave similar evidence but is not present."""

    why: str


Answer = Suspect | RuledOut | None
"""None if nothing in the evidence suggests the cause."""
Rule = Callable[[Evidence], Answer]
