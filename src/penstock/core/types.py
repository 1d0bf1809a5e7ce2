"""Type aliases that several packages share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Numbers of samples, blocks, shards or slots; also byte offsets and lengths."""
Arrays = dict[str, NDArray[Any]]
"""Arrays of a batch or of a sample, by name."""
