"""What was said of one run with a fault, beside what was true."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    fault: str
    severity: str
    seed: int
    expect: str | None
    named: str | None
    """The first finding's rule; None: there was no finding."""
    verdict: str
    """healthy, findings or undetermined."""
    findings: int
    predicted: float | None
    """Gain of the first finding."""
    actual: float | None
    """Gain measured when the fault is removed; None for runs with nothing wrong."""
    confidence: float | None
    seconds: float
    """The run and its twin, processes included."""

    @property
    def right(self) -> bool:
        if self.expect is None:
            return self.verdict == "healthy" and self.named is None
        return self.named == self.expect

    @property
    def error(self) -> float | None:
        """Of the predicted gain, in parts of the measured one: 0.2 is a fifth too much. None if another was named."""
        if self.predicted is None or self.actual is None or not self.right:
            return None
        return self.predicted / self.actual - 1 if self.actual > 0 else math.inf
