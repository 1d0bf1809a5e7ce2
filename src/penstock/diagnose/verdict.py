"""From a recording to a diagnosis: every rule is asked, the model says what each cure would give, the best is first."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from penstock.core.finding import Diagnosis, Finding, Impact, RejectedCause, Verdict
from penstock.diagnose import rules
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.impact import impact_of
from penstock.diagnose.ranks.waits import rank_waits
from penstock.diagnose.suspect import Answer, Rule, RuledOut, Suspect
from penstock.model.bootstrap import bootstrap
from penstock.recording.reader import Recording, need_run

LEAST_GAIN = 0.05
"""Less is not worth a change, and within what runs differ by."""
LEAST_STRENGTH = 0.5
"""A suspicion below this is told as an experiment, not as a finding."""
WAITING = 0.10
"""A run that waits for a larger share than this is not healthy, whether or not we know why."""
MOST_GAIN = 99.0
"""A hundredfold: beyond that the model only says that nothing else takes time, as in a loop that does nothing."""
ENOUGH_STEPS = 20
"""Below this nothing is said about causes."""
OF_STARTS = ("worker_startup",)
"""Rules that look at the beginning of passes alone."""
RESAMPLES = 40
_EXPERIMENT = (
    "Halve num_workers: the same rate means a shared resource is full, half the rate means each worker is slow"
)


@cache
def all_rules() -> dict[str, Rule]:
    """By name: the `look` of every file in rules/."""
    names = sorted(module.name for module in pkgutil.iter_modules(rules.__path__) if not module.name.startswith("_"))
    return {name: importlib.import_module(f"{rules.__name__}.{name}").look for name in names}


def diagnose(recording: Recording) -> Diagnosis:
    """What this run waited for, and why."""
    need_run(recording)
    seen = gather(recording)
    if not seen:
        return Diagnosis(
            verdict="undetermined",
            sentence="Nothing was iterated over: there is no step to judge.",
            notes=recording.notes,
            experiment="Run it again and let it train for some steps.",
        )
    main = max(filter(_enough, seen), key=_judged_by, default=seen[0])
    impact = impact_of(recording, seen)
    if not _enough(main):
        return Diagnosis(
            verdict="undetermined",
            sentence=f"{len(main.loop.steps)} steps are too few to judge.",
            impact=impact,
            notes=recording.notes,
            experiment=f"Let it train for at least {5 * ENOUGH_STEPS} steps.",
        )
    answers = {name: rule(main) for name, rule in _rules_for(main).items()}
    findings = _ranked(main, answers)
    rejected = tuple(RejectedCause(rule=name, why=a.why) for name, a in answers.items() if isinstance(a, RuledOut))
    doubtful = [a for a in answers.values() if isinstance(a, Suspect) and a.strength < LEAST_STRENGTH and a.experiment]
    return _verdict(main, findings, rejected, doubtful, recording.notes, impact)


def _enough(evidence: Evidence) -> bool:
    return max(len(evidence.loop.steps), len(evidence.loop.first_steps)) >= ENOUGH_STEPS


def _judged_by(evidence: Evidence) -> float:
    """The waiting that could be explained; of a run with enough steps, their own."""
    return float((evidence.loop.wait_s if len(evidence.loop.steps) >= ENOUGH_STEPS else evidence.loop.startup_s).sum())


def _rules_for(evidence: Evidence) -> dict[str, Rule]:
    """All, for a run that has enough steps; of one that makes a new pass for each there is no more than starts."""
    if len(evidence.loop.steps) >= ENOUGH_STEPS:
        return all_rules()
    return {name: all_rules()[name] for name in OF_STARTS}


def most_waiting(ranks: Sequence[Recording]) -> Recording:
    """Of the ranks of a run the one to judge: it holds the others back, or waited most. Its notes say so."""
    if len(ranks) == 1:
        return ranks[0]
    waited = [sum(step.wait_s for step in rank.steps) for rank in ranks]
    waits = rank_waits(ranks)
    holder = None if waits is None else waits.holder
    worst = max(range(len(ranks)), key=waited.__getitem__) if holder is None else holder
    why = "waited most" if holder is None else "holds the others back"
    waited_s = f"{waited[worst]:.1f} s of {len(ranks)} ranks' {sum(waited):.1f} s"
    told = f"rank {ranks[worst].run.rank} {why}: it waited {waited_s}"
    return replace(ranks[worst], notes=(*ranks[0].notes, told))


def _ranked(evidence: Evidence, answers: dict[str, Answer]) -> tuple[Finding, ...]:
    suspects = {
        name: answer
        for name, answer in answers.items()
        if isinstance(answer, Suspect) and answer.strength >= LEAST_STRENGTH
    }
    findings = [_finding(evidence, name, suspect) for name, suspect in suspects.items()]
    worth = [finding for finding in findings if finding.gain >= LEAST_GAIN and finding.gain_high > 0]
    return tuple(sorted(worth, key=lambda finding: -finding.gain * finding.confidence**2))


def _finding(evidence: Evidence, name: str, suspect: Suspect) -> Finding:
    low, gain, high = _gain(evidence, suspect)
    return Finding(
        rule=name,
        gain=gain,
        gain_low=low,
        gain_high=high,
        confidence=suspect.strength * _agreed(low, high),
        summary=suspect.summary,
        evidence=suspect.evidence,
        advice=suspect.advice,
        experiment=suspect.experiment,
    )


def _gain(evidence: Evidence, suspect: Suspect) -> tuple[float, float, float]:
    """Counted from what was measured; but what the model cannot explain is not won by a cure that changes nothing."""
    if suspect.cure is None or evidence.workload is None:
        gain = _said(suspect.gain or 0.0)
        return gain, gain, gain
    found = bootstrap(evidence.workload, suspect.cure, RESAMPLES, seed=0)
    better = evidence.workload.steady_rate * evidence.loop.cycle_s
    low, gain, high = (_said(part if part < LEAST_GAIN else (1 + part) * better - 1) for part in found)
    return low, gain, high


def _agreed(low: float, high: float) -> float:
    """How much of the bootstrap's interval lies where a gain is worth a finding."""
    if low >= LEAST_GAIN:
        return 1.0
    return max(0.0, (high - LEAST_GAIN) / (high - low)) if high > low else 0.0


def _said(gain: float) -> float:
    """As a number that means something: infinity less infinity, around an infinite gain, is one too."""
    return gain if gain < MOST_GAIN else MOST_GAIN


def _verdict(
    evidence: Evidence,
    findings: tuple[Finding, ...],
    rejected: tuple[RejectedCause, ...],
    doubtful: list[Suspect],
    notes: tuple[str, ...],
    impact: Impact,
) -> Diagnosis:
    waits = _waits(evidence)
    experiment = ""
    verdict: Verdict
    if findings:
        verdict, sentence = "findings", f"{findings[0].summary} ({waits}; without it {findings[0].gain:+.0%} samples/s)"
    elif evidence.starved_share > WAITING or not evidence.loop.steps:
        verdict, sentence = "undetermined", f"{waits}, and nothing that was seen says why"
        experiment = doubtful[0].experiment if doubtful else _EXPERIMENT
    else:
        verdict, sentence = "healthy", f"Healthy: {waits}; the step itself, {evidence.loop.step_text}, sets the pace"
    return Diagnosis(
        verdict=verdict,
        sentence=f"{sentence}.",
        findings=findings,
        rejected=rejected,
        experiment=experiment,
        impact=impact,
        notes=notes,
    )


def _waits(evidence: Evidence) -> str:
    if not evidence.loop.steps and evidence.loop.total_s > 0:
        share = float(evidence.loop.startup_s.sum()) / evidence.loop.total_s
        return f"{share:.0%} of the time is spent waiting for the first batch of a pass"
    return f"{evidence.loop.wait_share:.0%} of the steady time is spent waiting for data"
