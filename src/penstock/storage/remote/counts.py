"""What was asked of stores in this process, and what it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Sums since the start. Written by the channel's thread only."""

    requests: int = 0
    bytes_read: int = 0
    answers: int = 0
    """To requests for a range."""
    answer_s: float = 0.0
    """From asking until such an answer began to come: latency. Of all of them, side by side or not."""
    body_s: float = 0.0
    """From then until its last byte: bandwidth."""
    retries: int = 0
    """Requests made again after a failure."""
    stalls: int = 0
    """Requests given up because their bytes came too slowly."""
    asked_twice: int = 0
    """Second requests for the slow tail."""
    second_won: int = 0
    """Of these, those that were answered before the first."""
    renewals: int = 0
    """Stores made anew after a refusal."""


counts = Counts()
