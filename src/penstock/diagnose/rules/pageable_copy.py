"""Batches are copied to the device from pageable memory, and the loop waits for that.

From pageable memory the driver copies twice, at a third of the speed, and `.to(device)` returns only when it is done.
From pinned memory, with `non_blocking=True`, the copy overlaps with computing.

Evidence: copies to the device take time, and the loader does not pin its memory.

Similar causes: `host_sync` (there, the loop waits for the device in other calls).

Remedy: `pin_memory=True` and `.to(device, non_blocking=True)`; or penstock.Loader with `device="cuda"`.
"""

from __future__ import annotations

from penstock.core.arrays import trimmed_mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut, Suspect

COPY_MIN = 0.04
"""Share of the time per step in copies to the device."""
PAGEABLE = 19 / 55
"""Speed of a copy to the device from pageable memory over that from pinned memory: GB/s measured on an H200."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if copies take time, from memory that is not pinned."""
    copy_s, cycle_s = trimmed_mean(evidence.loop.phase_s("h2d")), evidence.loop.cycle_s
    if cycle_s <= 0 or copy_s < COPY_MIN * cycle_s:
        return None
    pin_memory = evidence.settings.in_force("pin_memory")
    if pin_memory is True:
        return RuledOut("the loader pins its memory")
    if evidence.in_use.get("pinned_batches"):
        return RuledOut("the batches that are copied lie in pinned memory")
    return Suspect(
        strength=0.85,
        summary=f"Copying batches to the device takes {format_ms(copy_s)} of the loop's time a step",
        evidence=(
            f"{format_ms(copy_s)} of {format_ms(cycle_s)} per step in copies to the device",
            f"pin_memory is {pin_memory}",
        ),
        settings={"pin_memory": True},
        advice="pin_memory=True and .to(device, non_blocking=True)",
        saved_s=_saved_s(evidence, copy_s),
    )


def _saved_s(evidence: Evidence, copy_s: float) -> float:
    """Return by how much a step becomes shorter: on the device, a copy from pinned memory takes its time too."""
    loop = evidence.loop
    copies_s = loop.device_s() - loop.device_s("h2d")
    left_s = loop.device_s("h2d") + PAGEABLE * copies_s
    return max(0.0, min(copy_s * (1 - PAGEABLE), loop.cycle_s - left_s))
