"""Type aliases that several packages share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Ids = NDArray[np.int64]
"""Numbers of samples, blocks, shards or slots; also byte offsets and lengths."""
Arrays = dict[str, NDArray[Any]]
"""Arrays of a batch or of a sample, by name."""
TENSOR_DTYPES = frozenset(map(np.dtype, "?BHILbhilqQefdFD"))
"""The dtypes that both numpy and torch have, in the byte order of the machine."""
