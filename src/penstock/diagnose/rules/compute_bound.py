"""The step itself takes the time. No advice about data can help.

The loop finds its batch ready whenever it asks. Changing workers, prefetch or storage would change nothing; what
helps is about the model: precision, compilation, batch size, the device.

Named so that nobody looks for the fault in the loader.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut

WAITS = 0.05


def check(evidence: Evidence) -> Answer:
    """Never a finding: it says how little could be gained from the data."""
    if evidence.loop.wait_share > WAITS:
        return None
    return RuledOut(
        f"the step takes {1 - evidence.loop.wait_share:.0%} of the time ({evidence.loop.step_text}): "
        f"no change to the loading can give more than {evidence.loop.wait_share / max(1e-9, 1 - evidence.loop.wait_share):.1%}"
    )
