"""The loop waits for the device in every step.

`.item()`, `.cpu()`, `print(loss)` or a norm per parameter wait until the device has finished everything before. The
host then has nothing queued, and the device is idle while the host prepares the next step.

Evidence: time in synchronising calls.

Similar causes: a slow model (there, synchronising calls take no time).

Remedy: keep losses as tensors and read them every fiftieth step; use `torch._foreach_norm` and one copy instead of
many.
"""

from __future__ import annotations

from penstock.core.arrays import trimmed_mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

SYNC_MIN = 0.05
"""Share of the time per step in synchronising calls."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if synchronising calls take a noticeable share of the step; the gain is the part that could
    overlap."""
    loop = evidence.loop
    sync_s, cycle_s = trimmed_mean(loop.phase_s("sync")), loop.cycle_s
    if cycle_s <= 0 or sync_s < SYNC_MIN * cycle_s:
        return None
    host_s = max(1e-9, cycle_s - sync_s)
    return Suspect(
        strength=0.75,
        summary=f"The loop waits {format_ms(sync_s)} a step for the device",
        evidence=(
            f"{format_ms(sync_s)} of {format_ms(cycle_s)} per step in .item(), .cpu() and similar calls",
            f"the host's own work takes {format_ms(host_s)}: without the calls both would overlap",
        ),
        advice="Keep losses on the device and read them every few dozen steps",
        saved_s=loop.saving(sync_s) if loop.device_s() else cycle_s - max(host_s, sync_s),
    )
