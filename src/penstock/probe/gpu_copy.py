"""How fast does a batch go from the host to the GPU, from pinned and from ordinary memory?"""

from __future__ import annotations

from typing import Any

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.probe.results import CopyRates, SkippedProbe

BUDGET_S = 4.0
BATCH_BYTES = 64 << 20
"""Where no batch is known: long enough that starting a copy does not count."""
COPIES_MAX = 1000
COPIES_LEAST = 3


def probe_copy(
    batch_bytes: int = BATCH_BYTES, *, budget_s: float = BUDGET_S, clock: Clock = SYSTEM_CLOCK, torch: Any | None = None
) -> CopyRates | SkippedProbe:
    """Both rates of the current CUDA device, or why there are none; `torch` is the module, for tests."""
    torch = torch or _torch()
    if torch is None:
        return SkippedProbe("torch is not installed")
    if not torch.cuda.is_available():
        return SkippedProbe("torch sees no CUDA device")
    began = clock.now()
    try:
        ordinary = torch.ones(batch_bytes, dtype=torch.uint8)  # written, so that it has pages of its own
        pinned = ordinary.pin_memory()
        target = torch.empty(batch_bytes, dtype=torch.uint8, device="cuda")
        return CopyRates(
            device=str(torch.cuda.get_device_name()),
            batch_bytes=batch_bytes,
            pinned_s=_copy_s(torch, pinned, target, budget_s / 2, clock),
            pageable_s=_copy_s(torch, ordinary, target, budget_s / 2, clock),
            seconds=clock.now() - began,
        )
    except RuntimeError as error:  # out of memory, here or there; a driver that gave up
        return SkippedProbe(f"CUDA failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


def _torch() -> Any | None:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _copy_s(torch: Any, source: Any, target: Any, budget_s: float, clock: Clock) -> float:
    """Seconds of one copy: the first two are not counted, the rest are timed by the device, from end to end."""
    target.copy_(source)
    torch.cuda.synchronize()
    before = clock.now()
    target.copy_(source)
    torch.cuda.synchronize()
    one_s = max(clock.now() - before, 1e-6)
    copies = max(COPIES_LEAST, min(COPIES_MAX, int(budget_s / one_s)))
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(copies):
        target.copy_(source, non_blocking=True)
    last.record()
    last.synchronize()
    return max(float(first.elapsed_time(last)) / 1e3, 1e-9) / copies
