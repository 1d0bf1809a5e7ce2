"""The time of each hop: busy, starved or blocked. The hop that is neither starved nor blocked is the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self


@dataclass(frozen=True, slots=True)
class Hop:
    """Seconds since the start, summed over all workers of the hop: two readers idle for one second are two seconds."""

    name: str
    busy_s: float = 0.0
    starved_s: float = 0.0
    """Seconds of waiting for input."""
    blocked_s: float = 0.0
    """Seconds of waiting for space downstream."""

    @property
    def total_s(self) -> float:
        """Seconds, busy or not."""
        return self.busy_s + self.starved_s + self.blocked_s

    @property
    def busy(self) -> float:
        """Fraction of the time spent working; 0 if there was no time."""
        return self.busy_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def starved(self) -> float:
        """Fraction of the time spent waiting for input."""
        return self.starved_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def blocked(self) -> float:
        """Fraction of the time spent waiting for space downstream."""
        return self.blocked_s / self.total_s if self.total_s > 0 else 0.0

    def since(self, earlier: Self) -> Hop:
        """Return what happened since the earlier measurement."""
        return Hop(
            self.name,
            self.busy_s - earlier.busy_s,
            self.starved_s - earlier.starved_s,
            self.blocked_s - earlier.blocked_s,
        )

    def __str__(self) -> str:
        return f"{self.name} busy {self.busy:.0%} starved {self.starved:.0%} blocked {self.blocked:.0%}"


@dataclass(frozen=True, slots=True)
class HopState:
    """How many readers or workers of a hop are busy now, how many are idle, and what the idle ones wait for."""

    busy: int
    idle: int
    reason: Literal["starved", "blocked"]


class HopMeter:
    """The time of one hop. `update` is called after every change of its state, so the sums are exact, not sampled."""

    def __init__(self, name: str) -> None:
        # replaced as one tuple, since other threads may read it at any time
        self._last: tuple[Hop, HopState | None, float] = (Hop(name), None, 0.0)

    def update(self, now: float, state: HopState | None) -> None:
        """Note the state from now on; None while there is no work at all."""
        self._last = (self.hop(now), state, now)

    def hop(self, now: float) -> Hop:
        """Return the sums so far."""
        hop, state, since = self._last
        if state is None:
            return hop
        seconds = now - since
        idle_s = state.idle * seconds
        starved_s, blocked_s = (idle_s, 0.0) if state.reason == "starved" else (0.0, idle_s)
        return Hop(hop.name, hop.busy_s + state.busy * seconds, hop.starved_s + starved_s, hop.blocked_s + blocked_s)
