"""Batches are copied to the device from ordinary memory, and the loop waits for it.

From pageable memory the driver copies twice, at a third of the speed, and `.to(device)` returns only when it is
done. From pinned memory with `non_blocking=True` the copy runs beside the computation.

Remedy: `pin_memory=True` and `.to(device, non_blocking=True)`; or penstock.Loader with `device="cuda"`.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

LEAST = 0.04


def check(evidence: Evidence) -> Answer:
    """Copies take time, from memory that is not pinned."""
    copying = mean(evidence.loop.phase_s("h2d"))
    cycle = evidence.loop.cycle_s
    if cycle <= 0 or copying < LEAST * cycle:
        return None
    if evidence.settings.in_force("pin_memory") is True:
        return RuledOut("the loader pins its memory")
    return Suspect(
        strength=0.85,
        summary=f"Copying batches to the device holds the loop up for {format_ms(copying)} a step",
        evidence=(
            f"{format_ms(copying)} of {format_ms(cycle)} per step in copies to the device",
            f"pin_memory is {evidence.settings.in_force('pin_memory')}",
        ),
        advice="pin_memory=True and .to(device, non_blocking=True)",
        gain=evidence.loop.gain_without(copying, "h2d"),
    )
