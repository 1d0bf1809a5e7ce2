"""The types of a diagnosis: the findings, the causes that were ruled out, and the cost of waiting for data.

`diagnose` makes them from a recording, and `report` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["healthy", "findings", "undetermined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause that costs time, with the gain that removing it would give."""

    rule: str
    """Name of the rule that found the cause, which is the name of its file."""
    gain: float
    """Relative increase of samples per second if the cause were removed, as the model predicts it: 0.5 is 50% more."""
    gain_low: float
    gain_high: float
    """95% of the gains of the block bootstrap lie between `gain_low` and `gain_high`."""
    confidence: float
    """0 to 1: how well the evidence distinguishes the cause from its look-alikes, times the share of the bootstrap's
    interval that is worth a change."""
    summary: str
    """One sentence with the numbers that matter."""
    evidence: tuple[str, ...] = ()
    """The observations behind the finding: one fact each, with its numbers."""
    advice: str = ""
    """The change to make."""
    experiment: str = ""
    """An experiment that would decide whether this is the cause, for use where the confidence is low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCause:
    """A cause that a rule has ruled out, with the reason."""

    rule: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """The cost of waiting for data."""

    run_s: float
    """Seconds of the whole run."""
    waited_s: float
    """Seconds of waiting for the loader, beyond the cost of receiving a ready batch."""
    share: float
    """`waited_s` as a share of `run_s`."""
    per_epoch_s: float | None = None
    """Seconds of waiting per epoch; None if the number of batches per epoch is unknown."""
    gpu_hours: float = 0.0
    """Hours of waiting, times the number of GPUs (or ranks) that waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWait:
    """How long one rank of a run waited for data, and how long the other ranks waited for it."""

    rank: int
    waited_s: float
    """Seconds that the rank itself waited, beyond the cost of receiving a ready batch."""
    last: float
    """Share of the steps in which the rank was the last to have its batch."""
    alone_s: float
    """Seconds by which the rank held the others back: its wait beyond the next longest, summed over those steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """How the ranks of a run held each other back: a step continues when the last rank has its batch."""

    sentence: str
    """The result in one sentence, for reports."""
    steps: int
    """Number of steps that all ranks have in common, without the first of each epoch."""
    exposed_s: float
    """Seconds of the longest wait of any rank, summed over those steps: the wait of the run as a whole."""
    share: float
    """`exposed_s` as a share of the time of those steps."""
    holder: int | None = None
    """The rank that holds the others back; None if all wait equally long, or hold each other back in turns."""
    each: tuple[RankWait, ...] = ()
    """The figures of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The result of diagnosing one run."""

    verdict: Verdict
    sentence: str
    """The verdict as a sentence."""
    findings: tuple[Finding, ...] = ()
    """The causes that cost time, the most valuable to remove first."""
    rejected: tuple[RejectedCause, ...] = ()
    experiment: str = ""
    """If the verdict is "undetermined": the experiment that would decide."""
    account: dict[str, float] = field(default_factory=dict)
    """Seconds of the run by what they went into; they add up to the time of the run. Waiting is divided by cause."""
    impact: Impact | None = None
    ranks: RankSummary | None = None
    """How the ranks waited for each other, if the recordings of several ranks were found."""
    notes: tuple[str, ...] = field(default=())
    """Remarks for the reader, for example that the file is truncated or that a library changed a setting."""
