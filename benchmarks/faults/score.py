"""What all verdicts come to: who was taken for whom, how often the first name was right, how good the gains were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.faults.verdict import Verdict
from benchmarks.result import Line

TOP_1 = 0.95
GAINS = 0.8
GAIN_WITHIN = 0.2
NOTHING = "(nothing)"

Matrix = dict[str, Counter[str]]
"""Fault → rule named first → how often."""


def matrix(verdicts: Sequence[Verdict]) -> Matrix:
    found: Matrix = {}
    for verdict in verdicts:
        found.setdefault(verdict.fault, Counter())[verdict.named or NOTHING] += 1
    return found


def lines(verdicts: Sequence[Verdict]) -> Iterator[Line]:
    """The three figures to reach. What cannot be judged for want of runs is left out."""
    faulty = [verdict for verdict in verdicts if verdict.expect is not None]
    quiet = [verdict for verdict in verdicts if verdict.expect is None]
    gains = [verdict.error for verdict in faulty if verdict.error is not None]
    if faulty:
        right = sum(verdict.right for verdict in faulty)
        yield Line("fault named first", f"{right}", f"of {len(faulty)}", right / len(faulty), TOP_1, "at least")
    if quiet:
        findings = sum(verdict.findings for verdict in quiet)
        yield Line("findings where nothing is wrong", f"{findings}", f"in {len(quiet)} runs", findings, 0, "at most")
    if gains:
        near = sum(abs(error) <= GAIN_WITHIN for error in gains)
        what = f"gain within {GAIN_WITHIN:.0%} of the measured one"
        yield Line(what, f"{near}", f"of {len(gains)}", near / len(gains), GAINS, "at least")
