"""How many cores this process may really use."""

from __future__ import annotations

import os
from contextlib import suppress
from math import ceil
from pathlib import Path


def usable_cores(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """The affinity mask, cut down to the container's CPU quota where there is one; never less than 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup_root)
    return cores if quota is None else max(1, min(cores, ceil(quota)))


def _quota(root: Path) -> float | None:
    """Cores' worth of time per period: cgroup v2 first, then v1; None where nothing limits."""
    with suppress(OSError, ValueError):
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    with suppress(OSError, ValueError):
        limit_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu" / "cpu.cfs_period_us").read_text())
        return None if limit_us <= 0 else limit_us / period_us
    return None
