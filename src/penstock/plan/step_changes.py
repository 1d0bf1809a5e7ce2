"""What could be changed about the training step itself. A gain only where the recording and the model say one.

What the loop does beside the model (logging, waiting for the device, Python) has been timed, so its gain is known. What
precision, compilation or memory layout would give depends on the model, and no recording tells: those are named only
where the step is what takes the time, as things to try, with what speaks for trying.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.core.arrays import mean
from penstock.core.format import format_ms
from penstock.core.plan import Change
from penstock.diagnose.evidence.evidence import Evidence
from penstock.diagnose.rules import all_rules
from penstock.diagnose.rules.small_batch import ENOUGH
from penstock.diagnose.suspect import RuledOut
from penstock.diagnose.verdict import GAIN_MIN, STEPS_MIN
from penstock.model.edits import with_step
from penstock.plan.data_changes import causes, model_gain

ACCUMULATED = 4
"""Batches per optimizer step that are proposed: three of four optimizer steps saved, most of what there is to save."""
LEAST_OPTIMIZER = 0.2
"""Of the time per step: below it a larger effective batch, which changes the training, is not worth proposing."""
HOST_BOUND = 0.8
"""The device busy for less than this share of the step waits for the host to start its work."""
FULL = 0.9
"""Of the device's memory in use: no room for a larger batch."""


class _StepRemedy(NamedTuple):
    """Of a cause that lies in the loop: the setting, as it is, as it should be."""

    name: str
    now: str
    then: str


CURES = {
    "host_sync": _StepRemedy("sync", "the device is waited for in every step", "losses read every 50 steps"),
    "logging_overhead": _StepRemedy("logging", "in the loop", "every 50 steps, from a thread, no fsync"),
    "main_process_python": _StepRemedy(
        "python", "beside the model, in every step", "every 50 steps, or in another process"
    ),
    "gc_pauses": _StepRemedy(
        "gc", "collects whenever Python likes", "gc.freeze() after set-up, collect between epochs"
    ),
}
"""By the rule that finds it."""


def step_changes(evidence: Evidence) -> tuple[Change, ...]:
    """The one with the largest gain first; what is only to be tried comes last."""
    if len(evidence.loop.steps) < STEPS_MIN or evidence.loop.cycle_s <= 0:
        return ()
    found = [*_in_the_loop(evidence), *_batch_size(evidence), *_accumulation(evidence), *_copying(evidence)]
    if isinstance(all_rules()["compute_bound"](evidence), RuledOut):
        named = {change.name for change in found}
        found += [change for change in _to_try(_DeviceFacts.of(evidence)) if change.name not in named]
    worth = [change for change in found if change.gain is None or change.gain >= GAIN_MIN]
    return tuple(sorted(worth, key=lambda change: -1.0 if change.gain is None else change.gain, reverse=True))


# -- what was timed --------------------------------------------------------------------------------------------------


def _in_the_loop(evidence: Evidence) -> Iterator[Change]:
    for rule, suspect in causes(evidence, *CURES).items():
        cure = CURES[rule]
        yield Change(
            scope="step",
            name=cure.name,
            now=cure.now,
            then=cure.then,
            reason=f"{suspect.summary}: {suspect.evidence[0]}",
            gain=_with_supply(evidence, suspect.gain or 0.0),
        )


def _batch_size(evidence: Evidence) -> Iterator[Change]:
    """Where a run had batches of several sizes, and the larger ones were quicker per sample."""
    for suspect in causes(evidence, "small_batch").values():
        sizes = np.array([step.samples or 0 for step in evidence.loop.steps])
        each, times = np.unique(sizes, return_counts=True)
        yield Change(
            scope="step",
            name="batch_size",
            now=int(np.median(sizes)),
            then=int(each[times >= ENOUGH].max()),
            reason=f"{suspect.summary} ({'; '.join(suspect.evidence)}); a sweep over sizes finds where it stops",
            gain=_with_supply(evidence, suspect.gain or 0.0),
            cost="memory for the larger batch; the learning rate wants scaling with it",
        )


def _accumulation(evidence: Evidence) -> Iterator[Change]:
    """The optimizer's time was measured; done for every fourth batch, it costs a quarter."""
    optimizer_s = _optimizer_s(evidence)
    if optimizer_s < LEAST_OPTIMIZER * evidence.loop.cycle_s:
        return
    yield Change(
        scope="step",
        name="accumulation",
        now=None,
        then=ACCUMULATED,
        reason=f"The optimizer takes {format_ms(optimizer_s)} of {format_ms(evidence.loop.cycle_s)} per step; done "
        f"once for {ACCUMULATED} batches it takes a quarter of that",
        gain=_with_supply(evidence, _gain(evidence.loop.cycle_s, optimizer_s * (1 - 1 / ACCUMULATED))),
        cost=f"the effective batch is {ACCUMULATED} times as large: the learning rate wants scaling with it",
    )


def _optimizer_s(evidence: Evidence) -> float:
    """Of a step, by the clock of whoever sets the pace, the device or the host."""
    if evidence.loop.device_s() < HOST_BOUND * mean(evidence.loop.busy_s):
        return mean(evidence.loop.phase_s("optimizer"))
    return evidence.loop.device_s() - evidence.loop.device_s("optimizer")


def _copying(evidence: Evidence) -> Iterator[Change]:
    for suspect in causes(evidence, "pageable_copy").values():
        yield Change(
            scope="step",
            name="copy",
            now=None,
            then=".to(device, non_blocking=True)",
            reason=f"{suspect.summary}; it overlaps only from pinned memory, whose gain (pin_memory) counts both",
        )


def _gain(cycle_s: float, saved_s: float) -> float:
    return cycle_s / max(cycle_s - saved_s, 0.05 * cycle_s) - 1


def _with_supply(evidence: Evidence, gain: float) -> float:
    """What is left of a shorter step's gain if the data comes no sooner: the model runs the shorter step."""
    workload = evidence.workload
    if workload is None:
        return gain
    saved_s = evidence.loop.cycle_s * (1 - 1 / (1 + gain))
    return min(gain, model_gain(workload, lambda run: with_step(run, np.maximum(run.step_s - saved_s, 0.0))))


# -- what is only to be tried ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _DeviceFacts:
    """What is known of the device while steps ran."""

    evidence: Evidence
    busy: float | None
    """Share of the step, by the device's own clock; None where it was not read."""
    memory: float | None
    """Share in use at the most; None where nobody looked."""

    @classmethod
    def of(cls, evidence: Evidence) -> _DeviceFacts:
        step_s, device_s = mean(evidence.loop.busy_s), evidence.loop.device_s()
        used = [
            load.memory_used_bytes / gpu.memory_bytes
            for look in evidence.machine.system
            for gpu, load in zip(evidence.recording.run.machine.gpus, look.gpus, strict=False)
            if gpu.memory_bytes
        ]
        return cls(evidence, device_s / step_s if device_s and step_s > 0 else None, max(used, default=None))

    @property
    def waits_for_host(self) -> bool:
        return self.busy is not None and self.busy < HOST_BOUND

    @property
    def words(self) -> str:
        taken = f"The step takes {1 - self.evidence.loop.wait_share:.0%} of the time ({self.evidence.loop.step_text})"
        return taken if self.busy is None else f"{taken}, the device is busy for {min(1.0, self.busy):.0%} of it"


def _to_try(device: _DeviceFacts) -> Iterator[Change]:
    """Named only where there is a device: a step on the CPU has other remedies."""
    if not device.evidence.recording.run.machine.gpus:
        return
    not_known = "what it gives depends on the model and is not known before it is tried"
    if device.waits_for_host:
        yield _trial("compile", "torch.compile", f"{device.words}: it waits for the host; {not_known}")
    else:
        yield _trial("precision", "bfloat16 (torch.autocast)", f"{device.words}; {not_known}")
        yield _trial("compile", "torch.compile", f"{device.words}; {not_known}")
        yield _trial("channels_last", "model and pictures", f"{device.words}; for convolutions only; {not_known}")
    if device.memory is None or device.memory < FULL:
        room = "" if device.memory is None else f", and {device.memory:.0%} of the device's memory is the most in use"
        yield _trial("batch_size", "larger", f"{device.words}{room}: a sweep says at which size samples/s stop rising")


def _trial(name: str, then: str, reason: str) -> Change:
    return Change(scope="step", name=name, now=None, then=then, reason=reason)
