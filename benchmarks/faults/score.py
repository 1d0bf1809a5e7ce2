"""Score all verdicts: the first findings of each fault, how often they were right, and how exact the gains were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.faults.verdict import Verdict
from benchmarks.result import Line

MIN_NAMED_FIRST = 0.95
"""Share of the faulty runs whose first finding must be the fault."""
MIN_GAINS_NEAR = 0.8
"""Share of the predicted gains that must be near the measured ones."""
GAIN_WITHIN = 0.2
"""Relative error up to which a predicted gain counts as near."""
NOTHING = "(nothing)"

Matrix = dict[str, Counter[str]]
"""Number of runs by fault and by the rule of the first finding."""


def matrix(verdicts: Sequence[Verdict]) -> Matrix:
    found: Matrix = {}
    for verdict in verdicts:
        found.setdefault(verdict.fault, Counter())[verdict.named or NOTHING] += 1
    return found


def lines(verdicts: Sequence[Verdict]) -> Iterator[Line]:
    """Yield up to three lines; one that has no runs is left out."""
    faulty = [verdict for verdict in verdicts if verdict.expect is not None]
    healthy = [verdict for verdict in verdicts if verdict.expect is None]
    errors = [verdict.error for verdict in faulty if verdict.error is not None]
    if faulty:
        right = sum(verdict.right for verdict in faulty)
        share = right / len(faulty)
        yield Line("fault named first", f"{right}", f"of {len(faulty)}", share, MIN_NAMED_FIRST, "at least")
    if healthy:
        findings = sum(verdict.findings for verdict in healthy)
        yield Line("findings in runs without a fault", f"{findings}", f"in {len(healthy)} runs", findings, 0, "at most")
    if errors:
        near = sum(abs(error) <= GAIN_WITHIN for error in errors)
        what = f"gain within {GAIN_WITHIN:.0%} of the measured one"
        yield Line(what, f"{near}", f"of {len(errors)}", near / len(errors), MIN_GAINS_NEAR, "at least")
