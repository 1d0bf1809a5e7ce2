"""Do two runs of the training have the same losses? They do where they had the same inputs in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SAME_INPUTS = 1e-4
"""A GPU adds up in another order each time, a CPU now and then, and a training carries that on."""
OTHER_PIXELS = 1e-3
"""Between decoders that shrink in different ways, or pictures encoded once more: a few 1e-5 were measured; pictures
that are exchanged within a batch make 3e-3, black ones 5e-2, another batch far more."""
FIRST_STEPS = 32
"""Of other pixels, that are compared: who sees few pictures again and again learns their very pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAgreement:
    """Of two runs, step by step."""

    steps: int
    largest: float
    """Difference of the losses of a step, as a share of the first run's."""
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Where there is no step in common, nothing does."""
        return self.steps > 0 and self.largest <= self.tolerance

    def __str__(self) -> str:
        if not self.agrees:
            return f"DIFFER by {self.largest:.2g}" if self.steps else "NONE"
        return "the same" if self.largest == 0 else f"within {self.largest:.1g}"


def loss_agreement(before: Sequence[float], after: Sequence[float], *, same_pixels: bool) -> LossAgreement:
    """As far as both go; with other pixels, in the first steps."""
    steps = min(len(before), len(after), *(() if same_pixels else (FIRST_STEPS,)))
    first, second = np.array(before[:steps]), np.array(after[:steps])
    largest = float((np.abs(second - first) / np.abs(first)).max()) if steps else 0.0
    return LossAgreement(steps=steps, largest=largest, tolerance=SAME_INPUTS if same_pixels else OTHER_PIXELS)
