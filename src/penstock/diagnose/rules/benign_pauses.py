"""Pauses that are meant: evaluation, checkpoints.

They make single steps very slow, in a rhythm, and look like stalls in a list of slow steps. They are not the
loader's, and are left out of all other figures.
"""

from __future__ import annotations

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.loop import PAUSES
from penstock.diagnose.suspect import Answer, RuledOut


def check(evidence: Evidence) -> Answer:
    """Never a finding."""
    paused = evidence.loop.pause_s[evidence.loop.pause_s > 0]
    if not len(paused):
        return None
    return RuledOut(f"{len(paused)} pauses for {' or '.join(PAUSES)}, {format_ms(float(paused.sum()))} in all")
