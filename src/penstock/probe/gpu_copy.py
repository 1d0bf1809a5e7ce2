"""The copy probe: how long does a batch take from the host to the GPU, from pinned and from ordinary memory?"""

from __future__ import annotations

from typing import Any

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.probe.results import CopyRates, SkippedProbe

BUDGET_S = 4.0
BATCH_BYTES = 64 << 20
"""Used where no batch is known: large enough that the time to start a copy is negligible."""
COPIES_MAX = 1000
COPIES_LEAST = 3


def probe_copy(
    batch_bytes: int = BATCH_BYTES, *, budget_s: float = BUDGET_S, clock: Clock = SYSTEM_CLOCK, torch: Any | None = None
) -> CopyRates | SkippedProbe:
    """Return both rates of the current CUDA device, or why there are none; tests pass a `torch` module of their own."""
    torch = torch or _import_torch()
    if torch is None:
        return SkippedProbe("torch is not installed")
    if not torch.cuda.is_available():
        return SkippedProbe("torch sees no CUDA device")
    began = clock.now()
    try:
        pageable = torch.ones(batch_bytes, dtype=torch.uint8)  # written, so that its pages exist
        pinned = pageable.pin_memory()
        target = torch.empty(batch_bytes, dtype=torch.uint8, device="cuda")
        return CopyRates(
            device=str(torch.cuda.get_device_name()),
            batch_bytes=batch_bytes,
            pinned_s=_copy_s(torch, pinned, target, budget_s / 2, clock),
            pageable_s=_copy_s(torch, pageable, target, budget_s / 2, clock),
            seconds=clock.now() - began,
        )
    except RuntimeError as error:  # out of memory on the host or the device, or a failing driver
        return SkippedProbe(f"CUDA failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


def _import_torch() -> Any | None:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _copy_s(torch: Any, source: Any, target: Any, budget_s: float, clock: Clock) -> float:
    """Return the seconds of one copy: two copies warm up, the others are timed with device events around them all."""
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
