"""Logging takes a part of every step.

Writing a line and flushing it, a scalar per layer to TensorBoard, an fsync per step: each is small, on the loop's
own thread, at every step.

Looks like Python overhead; what the main thread is seen in tells it apart.

Remedy: log every fiftieth step, let a thread write, no fsync.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

LEAST = 0.05


def check(evidence: Evidence) -> Answer:
    """The loop logs, or stands in writes, for a noticeable share of the time."""
    own = 1 - evidence.loop.wait_share
    writing = max(
        mean(evidence.loop.phase_s("log")) / evidence.loop.cycle_s if evidence.loop.cycle_s > 0 else 0.0,
        evidence.loop.thread_states.get("write", 0.0) * own,
    )
    writing -= mean(evidence.loop.phase_s("checkpoint")) / evidence.loop.cycle_s if evidence.loop.cycle_s > 0 else 0.0
    if writing < LEAST:
        return None
    return Suspect(
        strength=0.85,
        summary=f"Writing logs takes {writing:.0%} of the time",
        evidence=(
            f"about {format_ms(writing * evidence.loop.cycle_s)} of {format_ms(evidence.loop.cycle_s)} per step",
            *(f"main thread: {name} ({share:.0%})" for name, share in list(evidence.loop.functions.items())[:2]),
        ),
        advice="Log every few dozen steps, from a thread, without fsync",
        gain=evidence.loop.gain_without(writing * evidence.loop.cycle_s),
    )
