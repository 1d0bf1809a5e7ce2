"""The training step itself takes the time, so no change to the loading can help.

Evidence: the loop finds its batch ready whenever it requests one.

Other numbers of workers, more prefetching or faster storage would change nothing. The remedies concern the model:
precision, compilation, batch size, the device. This rule never gives a finding; it is reported so that the fault is not
sought in the loader.
"""

from __future__ import annotations

from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.suspect import Answer, RuledOut

WAIT_SHARE_MAX = 0.05
"""Share of the time in the loader up to which the step counts as all of the time."""


def check(evidence: Evidence) -> Answer:
    """Report the largest gain that any change to the loading could give."""
    loop = evidence.loop
    if loop.wait_share > WAIT_SHARE_MAX or evidence.loader.type == "none":
        return None
    gain_max = loop.wait_share / max(1e-9, 1 - loop.wait_share)
    return RuledOut(
        f"the step takes {1 - loop.wait_share:.0%} of the time ({loop.step_text}): "
        f"no change to the loading can give more than {gain_max:.1%}"
    )
