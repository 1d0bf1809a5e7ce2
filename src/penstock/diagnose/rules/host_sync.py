"""The loop waits for the device at every step.

`.item()`, `.cpu()`, `print(loss)`, a norm per parameter: each waits until the device has done everything before it.
The host then has nothing queued, and the device idles while the next step is prepared.

Looks like slow compute; time in synchronising calls tells it apart.

Remedy: keep losses as tensors, look at them every fiftieth step; `torch._foreach_norm` and one copy instead of
many.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

LEAST = 0.05


def check(evidence: Evidence) -> Answer:
    """Time in synchronising calls, and what of it could be overlapped."""
    sync = mean(evidence.loop.phase_s("sync"))
    cycle = evidence.loop.cycle_s
    if cycle <= 0 or sync < LEAST * cycle:
        return None
    host = max(1e-9, cycle - sync)
    return Suspect(
        strength=0.75,
        summary=f"The loop waits {format_ms(sync)} a step for the device",
        evidence=(
            f"{format_ms(sync)} of {format_ms(cycle)} per step in .item(), .cpu() and their kin",
            f"the host's own work takes {format_ms(host)}: without waiting both would run side by side",
        ),
        advice="Keep losses on the device and read them every few dozen steps",
        gain=evidence.loop.gain_without(sync) if evidence.loop.device_s() else max(0.0, cycle / max(host, sync) - 1),
    )
