"""Memory is short, and the machine moves pages instead of working.

The run holds workers × prefetch factor × batch size × bytes per sample at any time. A prefetch factor that was raised
against stalls can fill the memory, evict the data itself from the page cache, and cause swapping.

Evidence: tasks that wait for memory, or pages that come back from swap, by the kernel's count.

Similar causes: a slow disk (there, no pages come back from swap).

Remedy: a smaller `prefetch_factor` (2 is enough unless samples vary), fewer workers, smaller dtypes.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

STALLED_MIN = 0.05
"""Share of the time in which a task waits for memory (pressure stall information)."""
SWAPPED_MIN_BYTES_S = 1e6
"""Bytes per second that come back from swap."""
MAJOR_FAULTS_FULL = 1000
"""Major page faults per second that take all of the time."""
LOST_MAX = 0.9
"""Largest share of the time that is taken for lost: keeps the gain finite."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if tasks wait for memory, or pages come back from swap."""
    system, settings = evidence.machine.system, evidence.settings
    stalled = mean([line.pressure.get("memory", 0.0) for line in system])
    swapped_bytes_s = mean([line.swapped_in_bytes_s for line in system])
    if stalled < STALLED_MIN and swapped_bytes_s < SWAPPED_MIN_BYTES_S:
        return None
    used_bytes = max((line.memory_used_bytes for line in system), default=0)
    faulting = mean([min(1.0, line.major_faults_s / MAJOR_FAULTS_FULL) for line in system])
    lost = min(LOST_MAX, max(stalled, faulting))
    return Suspect(
        strength=0.8,
        summary=f"Memory is short: {stalled:.0%} of the time a process waits for it",
        evidence=(
            f"the run holds {used_bytes / 1e9:.1f} GB; {swapped_bytes_s / 1e6:.1f} MB/s come back from swap",
            f"{settings.num_workers} workers × prefetch {settings.prefetch_factor} batches are held at any time",
        ),
        advice="prefetch_factor=2, fewer workers, smaller dtypes",
        gain=lost / (1 - lost),
    )
