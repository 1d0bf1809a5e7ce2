"""Makes a diagnosis from a recording: asks every rule, predicts the gain of removing each suspected cause, and ranks
them.

`diagnose` returns the `Diagnosis` alone; `diagnose_run` returns it together with the evidence and the answers of the
rules, which `plan` uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from penstock.core.arrays import mean
from penstock.core.finding import Diagnosis, Finding, RejectedCause, Verdict
from penstock.core.format import format_count, format_gain, format_ms, format_seconds
from penstock.diagnose.evidence.account import WAITING, account_of
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.gains import GAIN_MIN, MODEL_ERROR, Gains
from penstock.diagnose.impact import compute_impact
from penstock.diagnose.rules import all_rules
from penstock.diagnose.suspect import Answer, Rule, RuledOut, Suspect
from penstock.recording.reader import Recording, require_training_run

STRENGTH_MIN = 0.5
"""A weaker suspicion is reported as an experiment, not as a finding."""
WAIT_SHARE_HEALTHY = 0.10
"""A run that waits for a larger share of its time is not healthy, whether or not the cause is known."""
STEPS_MIN = 20
"""Causes are not judged from fewer steps."""
START_RULES = ("worker_startup",)
"""Rules that need the beginnings of epochs only, not steady steps."""
HOST_BOUND = 0.8
"""Busy share of the device below which it waits for the host to launch its work."""
_EXPERIMENT = (
    "Halve num_workers: the same rate means a shared resource is full, half the rate means each worker is slow"
)


@dataclass(frozen=True)
class LoaderDiagnosis:
    """The evidence of one loader, with the answers of the rules."""

    evidence: Evidence
    model_error: float = MODEL_ERROR
    """Error of the model's predictions, see `gains.MODEL_ERROR`."""

    @cached_property
    def gains(self) -> Gains:
        """Predicts the gains of changes to this run."""
        return Gains(self.evidence, self.model_error)

    @property
    def has_enough_steps(self) -> bool:
        """Whether there are enough steady steps for all rules."""
        return len(self.evidence.loop.steps) >= STEPS_MIN

    @cached_property
    def answers(self) -> dict[str, Answer]:
        """The answer of each rule, by its name; with too few steady steps, of the rules about beginnings only."""
        rules: Mapping[str, Rule] = all_rules()
        if not self.has_enough_steps:
            rules = {name: rules[name] for name in START_RULES}
        return {name: check(self.evidence) for name, check in rules.items()}

    @cached_property
    def suspects(self) -> dict[str, Suspect]:
        """The causes that are suspected strongly enough for a finding, by the name of the rule."""
        return {
            name: answer
            for name, answer in self.answers.items()
            if isinstance(answer, Suspect) and answer.strength >= STRENGTH_MIN
        }

    @cached_property
    def rejected(self) -> tuple[RejectedCause, ...]:
        """The causes that are ruled out, with the reason."""
        answers = self.answers.items()
        return tuple(
            RejectedCause(rule=name, why=answer.why) for name, answer in answers if isinstance(answer, RuledOut)
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The suspected causes whose removal is worth it, the most valuable first."""
        found = [_finding(self.gains, name, suspect) for name, suspect in self.suspects.items()]
        worth = [finding for finding in found if finding.gain >= GAIN_MIN and finding.gain_high > 0]
        return tuple(sorted(worth, key=lambda finding: -finding.gain * finding.confidence**2))

    @property
    def experiment(self) -> str:
        """The experiment that would decide where no cause is certain."""
        if self.evidence.loader.type == "none":
            return "Watch the function that draws a batch: get_batch = penstock.watch(get_batch)"
        answers = self.answers.values()
        weak = [answer for answer in answers if isinstance(answer, Suspect) and answer.strength < STRENGTH_MIN]
        return next((answer.experiment for answer in weak if answer.experiment), _EXPERIMENT)

    @cached_property
    def waiting_by_cause(self) -> dict[str, float]:
        """Shares of the waiting for data, beyond the receiving of ready batches, that each finding explains.

        A cause explains the waiting that the run would not have without it, as far as no larger cause explains it.
        """
        removed = {finding.rule: self.gains.waiting_removed(self.suspects[finding.rule]) for finding in self.findings}
        left, found = 1.0, {}
        for rule, share in sorted(removed.items(), key=lambda item: -item[1]):
            found[rule] = min(left, share)
            left -= found[rule]
        return found

    @property
    def is_explained(self) -> bool:
        """Whether a finding explains more time than is waited without a known cause."""
        unexplained = (1 - sum(self.waiting_by_cause.values())) * self.evidence.starved_share
        explained = [1 - 1 / (1 + finding.gain) for finding in self.findings]
        return max(explained, default=0.0) >= unexplained

    def account(self, others: Sequence[LoaderDiagnosis]) -> dict[str, float]:
        """Return the seconds of the run by kind, with the waiting divided by cause."""
        seconds = account_of(self.evidence, [other.evidence for other in others]).seconds
        waiting_s = seconds[WAITING]
        receiving_s = min(waiting_s, float(np.minimum(self.evidence.loop.wait_s, self.evidence.ipc.receive_s).sum()))
        parts = {f"waiting: {rule}": share * (waiting_s - receiving_s) for rule, share in self.waiting_by_cause.items()}
        unexplained_s = max(0.0, waiting_s - receiving_s - sum(parts.values()))
        parts |= {"waiting, unexplained": unexplained_s, "receiving ready batches": receiving_s}
        divided: dict[str, float] = {}
        for kind, kind_s in seconds.items():
            divided |= parts if kind == WAITING else {kind: kind_s}
        return {kind: kind_s for kind, kind_s in divided.items() if kind_s > 0}


@dataclass(frozen=True)
class RunDiagnosis:
    """The diagnosis of a run together with what it was derived from; `plan` takes it. It is not serialised."""

    recording: Recording
    loaders: tuple[LoaderDiagnosis, ...]
    """Every loader that was iterated over, the one with the longest waits first."""
    diagnosis: Diagnosis

    @property
    def steady_loader(self) -> LoaderDiagnosis | None:
        """The loader with the longest waits among those with enough steady steps."""
        return next((each for each in self.loaders if each.has_enough_steps and each.evidence.loop.cycle_s > 0), None)


def diagnose(recording: Recording, model_error: float | None = None) -> Diagnosis:
    """Return what the run waited for, and why; `model_error` is that of earlier predictions, for the intervals."""
    return diagnose_run(recording, model_error).diagnosis


def diagnose_run(recording: Recording, model_error: float | None = None) -> RunDiagnosis:
    """Return the diagnosis of a run with the evidence and the answers of the rules for each of its loaders."""
    require_training_run(recording)
    error = MODEL_ERROR if model_error is None else model_error
    loaders = tuple(LoaderDiagnosis(evidence, error) for evidence in gather(recording))
    return RunDiagnosis(recording, loaders, _diagnosis(recording, loaders))


def _diagnosis(recording: Recording, loaders: tuple[LoaderDiagnosis, ...]) -> Diagnosis:
    if not loaders:
        code = recording.end.exit_code if recording.end is not None else 0
        failed = f"The script ended with exit code {code} before it trained: there is no step to judge."
        return Diagnosis(
            verdict="undetermined",
            sentence=failed if code else "Nothing was iterated over: there is no step to judge.",
            notes=recording.notes,
            experiment="Remove the script's own error first; it is above, or in its log."
            if code
            else "Run it again, with a script that iterates over a DataLoader or penstock.Loader.",
        )
    impact = compute_impact(recording, [loader.evidence for loader in loaders])
    worst = max(filter(_can_be_judged, loaders), key=_explainable_wait_s, default=None)
    if worst is None:
        return Diagnosis(
            verdict="undetermined",
            sentence=f"{len(loaders[0].evidence.loop.steps)} steps are too few to judge.",
            impact=impact,
            notes=recording.notes,
            experiment=f"Let it train for at least {5 * STEPS_MIN} steps.",
        )
    verdict, sentence = _verdict(worst)
    return Diagnosis(
        verdict=verdict,
        sentence=f"{sentence}.",
        findings=worst.findings,
        rejected=worst.rejected,
        experiment=worst.experiment if verdict == "undetermined" else "",
        account=worst.account([loader for loader in loaders if loader is not worst]),
        impact=impact,
        notes=(*recording.notes, *_notes(worst.evidence)),
    )


def _notes(evidence: Evidence) -> Iterator[str]:
    """Yield which steps count, and what a longer run will do."""
    loop = evidence.loop
    if loop.warm_up_steps:
        warm_up_s = sum(step.wait_s + step.step_s for step in loop.warm_up_steps)
        yield (
            f"{len(loop.steps)} steps count; the {format_count(len(loop.warm_up_steps), 'step')} before them, of "
            f"{format_seconds(warm_up_s)}, and the first of each epoch do not"
        )
    if evidence.supply.lives_on_stock:
        yield f"{evidence.supply.text[0].upper()}{evidence.supply.text[1:]}"
        yield f"{evidence.supply.steps_needed} steps without the first ones would show it in the waits themselves"


def _can_be_judged(loader: LoaderDiagnosis) -> bool:
    return loader.has_enough_steps or len(loader.evidence.loop.first_steps) >= STEPS_MIN


def _explainable_wait_s(loader: LoaderDiagnosis) -> float:
    """Return the seconds of waiting that the rules can explain: that of steady steps, if there are enough of them."""
    loop = loader.evidence.loop
    if not loader.has_enough_steps:
        return float(loop.startup_s.sum())
    return max(float(loop.wait_s.sum()), loader.evidence.waited_s)


# -- findings ------------------------------------------------------------------------------------------------------


def _finding(gains: Gains, name: str, suspect: Suspect) -> Finding:
    low, gain, high = gains.of(suspect)
    return Finding(
        rule=name,
        gain=gain,
        gain_low=low,
        gain_high=high,
        confidence=suspect.strength * _share_worth_a_change(low, high),
        summary=suspect.summary,
        evidence=suspect.evidence,
        advice=suspect.advice,
        experiment=suspect.experiment,
    )


def _share_worth_a_change(low: float, high: float) -> float:
    """Return the share of the gain's interval that lies above GAIN_MIN."""
    if low >= GAIN_MIN:
        return 1.0
    return max(0.0, (high - GAIN_MIN) / (high - low)) if high > low else 0.0


# -- the verdict ---------------------------------------------------------------------------------------------------


def _verdict(loader: LoaderDiagnosis) -> tuple[Verdict, str]:
    evidence, findings = loader.evidence, loader.findings
    if evidence.loader.type == "none":
        return ("findings" if findings else "undetermined"), _step_sentence(evidence)
    waits = _waits(evidence)
    if findings and (loader.is_explained or evidence.starved_share <= WAIT_SHARE_HEALTHY):
        return "findings", f"{findings[0].summary} ({waits}; without it {format_gain(findings[0].gain)} samples/s)"
    if findings:
        unexplained = 1 - sum(loader.waiting_by_cause.values())
        return "undetermined", f"{waits}, and {unexplained:.0%} of the waiting has no known cause"
    if evidence.starved_share > WAIT_SHARE_HEALTHY or not evidence.loop.steps:
        return "undetermined", f"{waits}, and no cause was found in the recording"
    return "healthy", f"Healthy: {waits}; the step itself, {evidence.loop.step_text}, limits the rate"


def _step_sentence(evidence: Evidence) -> str:
    """Describe the step of a script without a loader, whose waits are not known."""
    loop = evidence.loop
    phases = [
        f"{name} {format_ms(mean(loop.phase_s(name)))}"
        for name in ("forward", "backward", "optimizer", "h2d", "sync")
        if loop.phase_s(name).any()
    ]
    on_host = f" ({', '.join(phases)} on the host)" if phases else ""
    text = f"The script uses no loader: a step takes {loop.step_text}{on_host}"
    if device_s := loop.device_s():
        busy = min(1.0, device_s / max(1e-9, mean(loop.busy_s)))
        waits = ": it waits for the host" if busy < HOST_BOUND else ""
        return f"{text}, and the device is busy for {busy:.0%} of it{waits}"
    return f"{text}; how much of it makes the batch is not known"


def _waits(evidence: Evidence) -> str:
    loop = evidence.loop
    if not loop.steps and loop.total_s > 0:
        share = float(loop.startup_s.sum()) / loop.total_s
        return f"{share:.0%} of the time is spent waiting for the first batch of an epoch"
    waits = f"{loop.wait_share:.0%} of the steady time is spent waiting for data"
    if evidence.supply.lives_on_stock:
        return f"{waits}, {evidence.starved_share:.0%} in a longer run"
    return waits
