"""Logging takes a part of every step.

Writing a line and flushing it, a scalar per layer to TensorBoard, or an fsync is small, but each is done in every step
on the thread of the loop.

Evidence: time in phases named log, or stack samples of the main thread in writes.

Similar causes: `main_process_python` (there, the main thread is sampled in other functions).

Remedy: log every fiftieth step, let a thread write, do not call fsync.
"""

from __future__ import annotations

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, Suspect

WRITING_MIN = 0.05
"""Share of the time that the loop writes logs."""


def check(evidence: Evidence) -> Answer:
    """Suspect it if the loop logs, or waits in writes, for a noticeable share of the time."""
    loop = evidence.loop
    writing = max(_share(evidence, "log"), loop.thread_states.get("write", 0.0) * (1 - loop.wait_share))
    writing -= _share(evidence, "checkpoint")
    if writing < WRITING_MIN:
        return None
    return Suspect(
        strength=0.85,
        summary=f"Writing logs takes {writing:.0%} of the time",
        evidence=(
            f"about {format_ms(writing * loop.cycle_s)} of {format_ms(loop.cycle_s)} per step",
            *(f"main thread: {name} ({share:.0%})" for name, share in list(loop.functions.items())[:2]),
        ),
        advice="Log every few dozen steps, from a thread, without fsync",
        saved_s=loop.saving(writing * loop.cycle_s),
    )


def _share(evidence: Evidence, phase: str) -> float:
    """Return the share of a phase in the time per step."""
    loop = evidence.loop
    return mean(loop.phase_s(phase)) / loop.cycle_s if loop.cycle_s > 0 else 0.0
