"""What the rules about cores have in common."""

from __future__ import annotations

from penstock.diagnose.evidence import Evidence

BEHIND = 0.05
"""Share of the time: a loop that waits less has no supply problem."""
COMPUTING = 0.6
"""Share of a worker's own time, waiting for a core left out: beyond it, computing is what it does."""


def behind(evidence: Evidence) -> bool:
    """Whether the loop waits for workers."""
    return evidence.workers > 0 and len(evidence.fetches) > 0 and evidence.behind >= BEHIND


def computing(evidence: Evidence) -> bool:
    """Whether the loop waits for workers who compute."""
    if not behind(evidence):
        return False
    own = float((evidence.cpu_s + evidence.blocked_s).sum())
    return own > 0 and float(evidence.cpu_s.sum()) / own >= COMPUTING


def top_function(evidence: Evidence) -> tuple[str, ...]:
    """Where workers are most of the time, if anybody looked."""
    for name, share in evidence.functions(main=False).items():
        return (f"most often seen in {name} ({share:.0%} of the looks)",)
    return ()
