"""What a diagnosis says: findings, worst first, and what speaks for and against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["healthy", "findings", "undetermined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause that costs time, with what removing it would give."""

    rule: str
    """The name of the rule, which is the name of its file."""
    gain: float
    """More samples per second if the cause were gone: 0.5 is half as many again; from the model, not a guess."""
    gain_low: float
    gain_high: float
    """95% of the block bootstrap's gains lie between these."""
    confidence: float
    """That this is the cause, 0 to 1: how well the evidence tells it from its look-alikes, times how much of the
    bootstrap's interval is worth a change."""
    summary: str
    """One sentence with the numbers that matter."""
    evidence: tuple[str, ...] = ()
    """What was seen, one fact with its numbers each."""
    advice: str = ""
    """What to change."""
    experiment: str = ""
    """What would decide, where confidence is low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A cause that looks alike and is not the one."""

    rule: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """What waiting for data costs."""

    run_s: float
    waited_s: float
    """In the loader, beyond what handing over a ready batch takes."""
    share: float
    """Of the run's time."""
    per_epoch_s: float | None = None
    gpu_hours: float = 0.0
    """Waited, times the devices (or ranks) that waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that is said about one run."""

    verdict: Verdict
    sentence: str
    findings: tuple[Finding, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    experiment: str = ""
    """When undetermined: the one that would decide."""
    impact: Impact | None = None
    notes: tuple[str, ...] = field(default=())
    """What else the reader should know: a truncated file, settings that were changed on the way."""
