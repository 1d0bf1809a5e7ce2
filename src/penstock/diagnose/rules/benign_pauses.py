"""The run pauses on purpose, for evaluation or checkpoints.

Evidence: phases named evaluation or checkpoint, or epochs of another loader within a step.

Such pauses make single steps very slow, at regular intervals, and resemble stalls in a list of slow steps. The loader
does not cause them, so they are left out of all other figures. This rule never gives a finding.
"""

from __future__ import annotations

from penstock.core.format import format_ms
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.evidence.loop import PAUSES
from penstock.diagnose.suspect import Answer, RuledOut


def check(evidence: Evidence) -> Answer:
    """Report the number and the duration of the pauses."""
    pauses = evidence.loop.pause_s[evidence.loop.pause_s > 0]
    if not len(pauses):
        return None
    return RuledOut(f"{len(pauses)} pauses for {' or '.join(PAUSES)}, {format_ms(float(pauses.sum()))} in all")
