"""Types of NumPy arrays, and the mean of numbers that may be none at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def mean(values: Sequence[float] | Floats) -> float:
    """Return the mean; 0 for no values."""
    return float(np.mean(values)) if len(values) else 0.0
