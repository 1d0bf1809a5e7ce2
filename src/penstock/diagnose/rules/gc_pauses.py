"""Python's garbage collector stops the training loop.

Each full collection walks every object there is: with millions of small ones (lists of annotations, nested dicts)
that takes a good part of a second, on the loop's own thread.

Looks like random slow steps; the collector's own clock tells it apart.

Remedy: `gc.freeze()` after set-up, arrays instead of lists of objects, `gc.disable()` and a collect at the epoch's
end.
"""

from __future__ import annotations

from penstock.diagnose.evidence import Evidence, milliseconds
from penstock.diagnose.suspect import Answer, Suspect

LEAST = 0.03
"""Share of the steady time."""


def look(evidence: Evidence) -> Answer:
    """Collections take a noticeable share."""
    pauses = [event.seconds for event in evidence.recording.events if event.what == "gc"]
    lost = max(sum(pauses), float(evidence.phase_s("gc").sum()))
    if evidence.steady_s <= 0 or lost < LEAST * evidence.steady_s:
        return None
    share = min(0.95, lost / evidence.steady_s)
    return Suspect(
        strength=0.9,
        summary=f"Garbage collection takes {share:.0%} of the time",
        evidence=(f"{milliseconds(lost)} in the collector" + (f", {len(pauses)} collections" if pauses else ""),),
        advice="gc.freeze() after set-up; fewer small objects; collect at the end of an epoch",
        gain=evidence.gain_without(share * evidence.cycle_s),
    )
