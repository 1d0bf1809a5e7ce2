"""The verdict on one run with a fault: the diagnosis of its recording, and the truth that it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    fault: str
    severity: str
    seed: int
    expect: str | None
    """Rule that the first finding must have; None: the run has no fault, so there must be no finding."""
    named: str | None
    """Rule of the first finding; None: there was no finding."""
    verdict: str
    """The verdict of the diagnosis: healthy, findings or undetermined."""
    findings: int
    """Number of findings."""
    predicted: float | None
    """Gain of the first finding."""
    actual: float | None
    """Gain that was measured by removing the fault; None for a run without a fault."""
    confidence: float | None
    """Confidence of the first finding."""
    seconds: float
    """Wall time of the run and its baselines, including the start of their processes."""

    @property
    def right(self) -> bool:
        """Whether the first finding is the fault, or a run without a fault is called healthy."""
        if self.expect is None:
            return self.verdict == "healthy" and self.named is None
        return self.named == self.expect

    @property
    def error(self) -> float | None:
        """Relative error of the predicted gain: 0.2 is a fifth too much. None if the first finding is not the fault."""
        if self.predicted is None or self.actual is None or not self.right:
            return None
        return self.predicted / self.actual - 1 if self.actual > 0 else math.inf
