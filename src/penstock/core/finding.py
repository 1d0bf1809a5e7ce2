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
class RejectedCause:
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
class RankWait:
    """One rank of a run, and what its waiting cost the others."""

    rank: int
    waited_s: float
    """Of its own, beyond what handing over a ready batch takes."""
    last: float
    """Share of the steps in which it was the last to have its batch."""
    alone_s: float
    """What it held the others back: its wait beyond the next longest, in those steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """How the ranks of a run held each other up: a step goes on when the last of them has its batch."""

    sentence: str
    steps: int
    """That all of them had, the first of each pass left out."""
    exposed_s: float
    """Over those steps, the longest wait of any rank: what the run as a whole waited for data."""
    share: float
    """Of the time of those steps."""
    holder: int | None = None
    """The rank that holds the others back; None: they wait alike, or in turns."""
    each: tuple[RankWait, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that is said about one run."""

    verdict: Verdict
    sentence: str
    findings: tuple[Finding, ...] = ()
    rejected: tuple[RejectedCause, ...] = ()
    experiment: str = ""
    """When undetermined: the one that would decide."""
    impact: Impact | None = None
    ranks: RankSummary | None = None
    """Where the run had several and their recordings were found."""
    notes: tuple[str, ...] = field(default=())
    """What else the reader should know: a truncated file, settings that were changed on the way."""
