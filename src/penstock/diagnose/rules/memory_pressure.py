"""Memory is short, and the machine moves pages instead of working.

workers × prefetch × batch × bytes per sample are held at any time; a prefetch factor raised against stalls can fill
the memory, push the data itself out of the page cache, and bring on swapping.

Looks like a slow disk; the kernel's count of pages it had to bring back tells it apart.

Remedy: a smaller prefetch_factor (2 is enough unless samples vary), fewer workers, smaller dtypes.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

STALLED = 0.05
"""Share of the time in which somebody waited for memory (PSI)."""
SWAPPED_BYTES_S = 1e6


def check(evidence: Evidence) -> Answer:
    """Tasks wait for memory, or pages come back from swap."""
    stalled = mean([look.pressure.get("memory", 0.0) for look in evidence.machine.system])
    swapped = mean([look.swapped_in_bytes_s for look in evidence.machine.system])
    if stalled < STALLED and swapped < SWAPPED_BYTES_S:
        return None
    used = max((look.memory_used_bytes for look in evidence.machine.system), default=0)
    share = min(0.9, max(stalled, mean([min(1.0, look.major_faults_s / 1000) for look in evidence.machine.system])))
    return Suspect(
        strength=0.8,
        summary=f"Memory is short: {stalled:.0%} of the time something waits for it",
        evidence=(
            f"the run holds {used / 1e9:.1f} GB; {swapped / 1e6:.1f} MB/s come back from swap",
            f"{evidence.settings.num_workers} workers × prefetch {evidence.settings.prefetch_factor} batches are held at any time",
        ),
        advice="prefetch_factor=2, fewer workers, smaller dtypes",
        gain=share / (1 - share),
    )
