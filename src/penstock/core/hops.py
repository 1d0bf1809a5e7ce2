"""The three numbers of every hop. The one that is neither starved nor blocked is the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Hop:
    """Seconds since the start, summed over all who work at this hop: two readers idle for a second are two seconds."""

    name: str
    busy_s: float = 0.0
    starved_s: float = 0.0
    """Waited for input."""
    blocked_s: float = 0.0
    """Waited for room downstream."""

    @property
    def total_s(self) -> float:
        """Busy or not."""
        return self.busy_s + self.starved_s + self.blocked_s

    @property
    def busy(self) -> float:
        """Share of its time that it worked; 0 if it had none."""
        return self.busy_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def starved(self) -> float:
        """Share of its time that it waited for input."""
        return self.starved_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def blocked(self) -> float:
        """Share of its time that it waited for room."""
        return self.blocked_s / self.total_s if self.total_s > 0 else 0.0

    def since(self, earlier: Self) -> Hop:
        """What happened between two looks."""
        return Hop(
            self.name,
            self.busy_s - earlier.busy_s,
            self.starved_s - earlier.starved_s,
            self.blocked_s - earlier.blocked_s,
        )

    def __str__(self) -> str:
        return f"{self.name} busy {self.busy:.0%} starved {self.starved:.0%} blocked {self.blocked:.0%}"
