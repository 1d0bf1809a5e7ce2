"""Which causes the evidence names, and what an edit of the run would give: what proposals rest on."""

from __future__ import annotations

from collections.abc import Callable

from penstock.diagnose.evidence import Evidence
from penstock.diagnose.suspect import Suspect
from penstock.diagnose.verdict import ENOUGH_STEPS, LEAST_STRENGTH, MOST_GAIN, all_rules
from penstock.model.workload import Workload, gain
from penstock.plan.predict import thinned


def causes(evidence: Evidence, *rules: str) -> dict[str, Suspect]:
    """Of these rules, those that suspect their cause as strongly as a finding must; none where steps are too few."""
    if len(evidence.steps) < ENOUGH_STEPS:
        return {}
    answers = {name: all_rules()[name](evidence) for name in rules}
    return {
        name: answer
        for name, answer in answers.items()
        if isinstance(answer, Suspect) and answer.strength >= LEAST_STRENGTH
    }


def model_gain(workload: Workload, edit: Callable[[Workload], Workload]) -> float:
    """More samples per second of the edited run; a hundredfold at most, as in a diagnosis."""
    run = thinned(workload)
    return min(gain(run, edit(run)), MOST_GAIN)
