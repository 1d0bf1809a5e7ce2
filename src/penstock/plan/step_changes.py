"""Changes to the training step itself, with a gain only where the recording and the model give one.

The loop's work beside the model (logging, waiting for the device, Python) has been timed, so the gain of removing it is
known. The gain of precision, compilation or memory layout depends on the model, and no recording shows it: those are
named only where the step takes most of the time, as changes to try, with the facts that speak for them.
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
from penstock.diagnose.gains import GAIN_MIN
from penstock.diagnose.rules.small_batch import STEPS_PER_SIZE_MIN
from penstock.diagnose.suspect import RuledOut
from penstock.diagnose.verdict import HOST_BOUND, LoaderDiagnosis

ACCUMULATION_STEPS = 4
"""Proposed batches per optimizer step: three of four optimizer steps are saved, which is most of the possible gain."""
MIN_OPTIMIZER_SHARE = 0.2
"""Share of the step below which a larger effective batch, which changes the training, is not worth proposing."""
FULL = 0.9
"""Share of the device's memory in use from which on a larger batch does not fit."""
MIN_STEP_SHARE = 0.05
"""Share of the time between batches that no change removes."""


HALF_PRECISION = ("bfloat16", "float16")
"""Types of parameters in which a model computes without autocast."""
IN_USE = {
    "autocast": "autocast",
    "grad_scaler": "GradScaler",
    "compiled": "torch.compile",
    "channels_last": "channels_last",
    "fused_optimizer": "a fused optimizer",
    "pinned_batches": "pinned batches",
    "non_blocking": "non-blocking copies",
    "cuda_graphs": "CUDA graphs",
    "ddp": "DistributedDataParallel",
    "fsdp": "FSDP",
}
"""Descriptions of what a training may use, by the name in the recording."""


class StepRemedy(NamedTuple):
    """The change that removes a cause in the training loop: its name, the current state and the proposed one."""

    name: str
    now: str
    then: str


STEP_REMEDIES = {
    "host_sync": StepRemedy("sync", "the device is waited for in every step", "losses read every 50 steps"),
    "logging_overhead": StepRemedy("logging", "in the loop", "every 50 steps, from a thread, no fsync"),
    "main_process_python": StepRemedy(
        "python", "beside the model, in every step", "every 50 steps, or in another process"
    ),
    "gc_pauses": StepRemedy(
        "gc", "automatic, in the middle of steps", "gc.freeze() after set-up, collect between epochs"
    ),
}
"""The remedy for each rule about the training loop."""


def step_changes(loader: LoaderDiagnosis) -> tuple[Change, ...]:
    """Return the changes to the step, sorted by gain; those that can only be tried come last."""
    evidence = loader.evidence
    if not loader.has_enough_steps or evidence.loop.cycle_s <= 0:
        return ()
    found = [*_loop_changes(loader), *_batch_size(loader), *_accumulation(loader), *_copies(loader)]
    if isinstance(loader.answers["compute_bound"], RuledOut) or evidence.loader.type == "none":
        names = {change.name for change in found}
        names |= _changes_in_use(evidence)
        found += [change for change in _changes_to_try(DeviceUse.of(evidence)) if change.name not in names]
    worth = [change for change in found if change.gain is None or change.gain >= GAIN_MIN]
    return tuple(sorted(worth, key=lambda change: -1.0 if change.gain is None else change.gain, reverse=True))


# -- changes with a known gain -----------------------------------------------------------------------------------


def _loop_changes(loader: LoaderDiagnosis) -> Iterator[Change]:
    for rule, remedy in STEP_REMEDIES.items():
        if suspect := loader.suspects.get(rule):
            yield Change(
                scope="step",
                name=remedy.name,
                now=remedy.now,
                then=remedy.then,
                reason=f"{suspect.summary}: {suspect.evidence[0]}",
                gain=loader.gains.of(suspect).gain,
            )


def _batch_size(loader: LoaderDiagnosis) -> Iterator[Change]:
    """Propose the largest batch size of a run that had several, if larger ones were faster per sample."""
    if suspect := loader.suspects.get("small_batch"):
        sizes = np.array([step.samples or 0 for step in loader.evidence.loop.steps])
        values, counts = np.unique(sizes, return_counts=True)
        yield Change(
            scope="step",
            name="batch_size",
            now=int(np.median(sizes)),
            then=int(values[counts >= STEPS_PER_SIZE_MIN].max()),
            reason=f"{suspect.summary} ({'; '.join(suspect.evidence)}); a sweep over sizes finds where it stops",
            gain=loader.gains.of(suspect).gain,
            cost="memory for the larger batch; the learning rate should be scaled with it",
        )


def _accumulation(loader: LoaderDiagnosis) -> Iterator[Change]:
    """Propose gradient accumulation where the optimizer takes a large part of the step."""
    evidence = loader.evidence
    optimizer_s, cycle_s = _optimizer_s(evidence), evidence.loop.cycle_s
    if optimizer_s < MIN_OPTIMIZER_SHARE * cycle_s:
        return
    saved_s = optimizer_s * (1 - 1 / ACCUMULATION_STEPS)
    yield Change(
        scope="step",
        name="accumulation",
        now=None,
        then=ACCUMULATION_STEPS,
        reason=f"The optimizer takes {format_ms(optimizer_s)} of {format_ms(cycle_s)} per step; done "
        f"once for {ACCUMULATION_STEPS} batches it takes a quarter of that",
        gain=loader.gains.of_saving(min(saved_s, (1 - MIN_STEP_SHARE) * cycle_s)).gain,
        cost=f"the effective batch is {ACCUMULATION_STEPS} times as large: the learning rate should be scaled with it",
    )


def _optimizer_s(evidence: Evidence) -> float:
    """Return the optimizer's seconds per step, on the clock of the device or of the host, whichever limits the step."""
    if evidence.loop.device_s() < HOST_BOUND * mean(evidence.loop.busy_s):
        return mean(evidence.loop.phase_s("optimizer"))
    return evidence.loop.device_s() - evidence.loop.device_s("optimizer")


def _copies(loader: LoaderDiagnosis) -> Iterator[Change]:
    suspect = loader.suspects.get("pageable_copy")
    if suspect and not loader.evidence.in_use.get("non_blocking"):
        yield Change(
            scope="step",
            name="copy",
            now=None,
            then=".to(device, non_blocking=True)",
            reason=f"{suspect.summary}; it overlaps only from pinned memory, whose gain (pin_memory) counts both",
        )


# -- changes to try ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceUse:
    """How much of the device the steps used."""

    evidence: Evidence
    busy: float | None
    """Share of the step, by the device's own clock; None where it was not read."""
    memory: float | None
    """Largest share of the memory in use; None where it was not sampled."""

    @classmethod
    def of(cls, evidence: Evidence) -> DeviceUse:
        """Compute the shares from the evidence."""
        step_s, device_s = mean(evidence.loop.busy_s), evidence.loop.device_s()
        used = [
            load.memory_used_bytes / gpu.memory_bytes
            for sample in evidence.machine.system
            for gpu, load in zip(evidence.recording.run.machine.gpus, sample.gpus, strict=False)
            if gpu.memory_bytes
        ]
        return cls(evidence, device_s / step_s if device_s and step_s > 0 else None, max(used, default=None))

    @property
    def waits_for_host(self) -> bool:
        """Whether the device is idle for a noticeable part of the step."""
        return self.busy is not None and self.busy < HOST_BOUND

    @property
    def text(self) -> str:
        """The shares in words."""
        loop = self.evidence.loop
        text = f"The step takes {1 - loop.wait_share:.0%} of the time ({loop.step_text})"
        return text if self.busy is None else f"{text}, the device is busy for {min(1.0, self.busy):.0%} of it"


def _changes_in_use(evidence: Evidence) -> set[str]:
    """Return the names of the changes that the training has made already, as far as the recording shows."""
    used = evidence.in_use
    found = {
        "precision": bool(used.get("autocast")) or used.get("parameters") in HALF_PRECISION,
        "compile": bool(used.get("compiled") or used.get("cuda_graphs")),
        "channels_last": bool(used.get("channels_last")),
    }
    return {name for name, in_use in found.items() if in_use}


def in_use_text(evidence: Evidence) -> str:
    """Return what the training uses already in one sentence; empty if nothing of it was recorded."""
    used = [
        f"{words} ({value})" if isinstance(value, str) else words
        for name, words in IN_USE.items()
        if (value := evidence.in_use.get(name))
    ]
    return f"Already in use, and not proposed: {', '.join(used)}" if used else ""


def _changes_to_try(device: DeviceUse) -> Iterator[Change]:
    """Propose changes only where there is a device: a step on the CPU has other remedies."""
    if not device.evidence.recording.run.machine.gpus:
        return
    unknown = "the gain depends on the model and is not known before it is tried"
    if device.waits_for_host:
        yield _change_to_try("compile", "torch.compile", f"{device.text}: it waits for the host; {unknown}")
    else:
        yield _change_to_try("precision", "bfloat16 (torch.autocast)", f"{device.text}; {unknown}")
        yield _change_to_try("compile", "torch.compile", f"{device.text}; {unknown}")
        yield _change_to_try("channels_last", "model and images", f"{device.text}; for convolutions only; {unknown}")
    if device.memory is None or device.memory < FULL:
        memory = "" if device.memory is None else f", and at most {device.memory:.0%} of the device's memory is in use"
        yield _change_to_try(
            "batch_size", "larger", f"{device.text}{memory}: a sweep says at which size samples/s stop rising"
        )


def _change_to_try(name: str, then: str, reason: str) -> Change:
    return Change(scope="step", name=name, now=None, then=then, reason=reason)
