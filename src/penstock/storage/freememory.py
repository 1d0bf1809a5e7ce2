"""How much memory there is to take, for this machine or our container."""

from __future__ import annotations

from pathlib import Path

import psutil

from penstock.core.cgroups import MEMBERSHIP, ROOT, memory_left_bytes


def free_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """What could still be taken: cached file pages count as free, they give way."""
    free = psutil.virtual_memory().available
    left = memory_left_bytes(root, membership)
    return free if left is None else min(free, left)
