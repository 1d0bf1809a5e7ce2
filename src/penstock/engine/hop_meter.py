"""Adds up what readers and workers do with their time: how many were busy, and why the others were not, × how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.core.hops import Hop

Why = Literal["starved", "blocked"]


@dataclass(frozen=True, slots=True)
class HopState:
    """How many at a hop are at work now, how many are not, and what those wait for."""

    busy: int
    idle: int
    why: Why


class HopMeter:
    """Of one hop. Whoever changes a crowd calls `note` after each change, so the sums are exact, not sampled."""

    def __init__(self, name: str) -> None:
        self._last: tuple[Hop, HopState | None, float] = (Hop(name), None, 0.0)  # replaced as one: any thread may look

    def note(self, now: float, crowd: HopState | None) -> None:
        """From now on it is this crowd; None while there is nothing to be done at all."""
        self._last = (self.hop(now), crowd, now)

    def hop(self, now: float) -> Hop:
        """The sums so far."""
        hop, crowd, since = self._last
        if crowd is None:
            return hop
        passed = now - since
        idle_s = crowd.idle * passed
        starved_s, blocked_s = (idle_s, 0.0) if crowd.why == "starved" else (0.0, idle_s)
        return Hop(hop.name, hop.busy_s + crowd.busy * passed, hop.starved_s + starved_s, hop.blocked_s + blocked_s)
