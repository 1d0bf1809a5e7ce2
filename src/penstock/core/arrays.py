"""Functions on arrays that several packages share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.types import Floats


def mean(values: Sequence[float] | Floats) -> float:
    """Return the mean; 0 for no values."""
    return float(np.mean(values)) if len(values) else 0.0
