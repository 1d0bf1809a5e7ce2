"""The few numbers that every report of a run begins with, and where the mean step's time went."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.evidence.loop import PAUSES, is_outermost
from penstock.recording.format import PROFILED_PHASES, LoaderLine
from penstock.recording.reader import Recording

WAIT, REST = "wait", "rest of the step"
IN_THE_WAIT = "sampler"
"""The one phase that lies inside the loader's time, not the step's."""

_PAUSES = frozenset(PAUSES)
MOST_PHASES = 24
"""Named one by one; shorter ones count to the rest of the step."""
DEEPEST = 16
"""Levels of phases inside phases that are told apart."""
VALUE_LENGTH = 120
"""Of a setting, in characters: what is longer is cut with a …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumbers:
    """The loader that cost most waiting, over its steady steps: the first batch of a pass is start-up."""

    loader: LoaderLine
    passes: int
    batches: int
    samples_per_s: float | None
    batches_per_s: float
    wait_share: float
    """Of the loop's time, in the loader."""
    wait_s: float
    step_s: float
    """The loop's own time per batch: what a step would take if data were always there."""
    startup_s: float | None
    """The first wait of a pass, on average."""
    gpu: float | None
    """Utilisation, mean over devices and time; None where nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One part of the mean step, with its place in it."""

    name: str
    depth: int
    """0: of the step; 1: inside the part above; and so on."""
    start_s: float
    seconds: float
    share: float
    """Of the whole step, wait included."""
    device_s: float | None = None
    """The same phase on the device's clock, where it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A loader's setting; `changed` where it is not what was asked for."""

    loader: str
    name: str
    requested: str
    in_force: str
    changed: bool


def main_evidence(recording: Recording) -> Evidence | None:
    """The loader that the reports are about; None where nothing was iterated over."""
    return next((evidence for evidence in gather(recording) if evidence.loop.steps), None)


def without_steps(recording: Recording) -> str:
    """What to say where there is no such loader."""
    return "No steps were recorded" + (" but the first of a pass" if recording.steps else "")


def numbers(evidence: Evidence) -> RunNumbers:
    """Of a loader with at least one steady step."""
    steady_s, batches = evidence.loop.steady_s, len(evidence.loop.steps)
    per_batch = evidence.loop.samples_per_batch
    rate = batches / steady_s if steady_s > 0 else 0.0
    return RunNumbers(
        loader=evidence.loader,
        passes=len({step.epoch for step in (*evidence.loop.first_steps, *evidence.loop.steps)}),
        batches=batches + len(evidence.loop.first_steps),
        samples_per_s=None if np.isnan(per_batch) else rate * per_batch,
        batches_per_s=rate,
        wait_share=evidence.loop.wait_share,
        wait_s=float(evidence.loop.wait_s.mean()),
        step_s=float(evidence.loop.busy_s.mean()),
        startup_s=float(evidence.loop.startup_s.mean()) if len(evidence.loop.startup_s) else None,
        gpu=_gpu(evidence),
    )


def _gpu(evidence: Evidence) -> float | None:
    seen = [gpu.utilisation for look in evidence.machine.system for gpu in look.gpus]
    return float(np.mean(seen)) if seen else None


# -- where the time went -------------------------------------------------------------------------------------------


def parts(evidence: Evidence) -> tuple[StepPart, ...]:
    """The mean step in order: the wait, each phase with those inside it, and what no phase covers."""
    host, device = phase_means(evidence), phase_means(evidence, on_device=True)
    wait_s, cycle_s = float(evidence.loop.wait_s.mean()), evidence.loop.cycle_s

    def part(path: str, depth: int, start_s: float, seconds: float) -> StepPart:
        share = seconds / cycle_s if cycle_s > 0 else 0.0
        place = {"start_s": start_s, "seconds": seconds, "share": share}
        return StepPart(name=inner_name(path, host), depth=depth, device_s=device.get(path), **place)

    found = [part(WAIT, 0, 0.0, wait_s)]
    if IN_THE_WAIT in host:
        found.append(part(IN_THE_WAIT, 1, 0.0, host.pop(IN_THE_WAIT)))
    laid = list(lay_out(host, wait_s))
    found += [part(*phase) for phase in laid]
    at_s = max((start_s + seconds for _, _, start_s, seconds in laid), default=wait_s)
    if cycle_s > at_s:
        found.append(part(REST, 0, at_s, cycle_s - at_s))
    return tuple(found)


def lay_out(phases: dict[str, float], start_s: float) -> Iterator[tuple[str, int, float, float]]:
    """Phases end to end, those inside another (outer/inner) from its start: path, depth, start and seconds.

    Recordings keep how long a phase took, not when: the order is that in which phases were first over.
    """
    inside: dict[str, list[str]] = {}
    for path in phases:
        inside.setdefault(outer_phase(path, phases), []).append(path)
    ahead = [(path, 0) for path in reversed(inside.get("", []))]
    free_s = [start_s]
    """Where the next phase of each depth begins."""
    while ahead:
        path, depth = ahead.pop()
        at_s = free_s[depth]
        yield path, depth, at_s, phases[path]
        free_s[depth:] = [at_s + phases[path], at_s]
        ahead += [(inner, depth + 1) for inner in reversed(inside.get(path, []))]


def inner_name(path: str, phases: Collection[str]) -> str:
    """Without the phase that it lies in."""
    outer = outer_phase(path, phases)
    return path[len(outer) + 1 :] if outer else path


def outer_phase(path: str, phases: Collection[str]) -> str:
    """The phase that this one lies in; empty where it lies in none. A slash may also be part of a name."""
    for _ in range(DEEPEST):
        path = path.rpartition("/")[0]
        if not path or path in phases:
            break
    return path if path in phases else ""


def phase_means(evidence: Evidence, *, on_device: bool = False) -> dict[str, float]:
    """Seconds per step of the longest phases, in the order they were first over; a pause is no part of a step.

    On the device only of steps whose events were read: of the others it is not known.
    """
    sums: dict[str, float] = {}
    counted = evidence.loop.represented
    if on_device:
        counted = counted * np.array([bool(step.device_phases) for step in evidence.loop.steps])
    for step, times in zip(evidence.loop.steps, counted, strict=True):
        if times:
            for name, seconds in (step.device_phases if on_device else step.phases).items():
                sums[name] = sums.get(name, 0.0) + times * seconds
    if not on_device and not evidence.loop.represented.all():
        sums = _as_all_saw(evidence, sums)
    kept = _without_pauses(sums)
    longest = set(sorted(kept, key=lambda name: -kept[name])[:MOST_PHASES])
    return {name: total / int(counted.sum()) for name, total in kept.items() if name in longest}


def _without_pauses(sums: dict[str, float]) -> dict[str, float]:
    """They are no part of a step, nor of the phase that they lie in."""
    kept = {path: total for path, total in sums.items() if not _PAUSES & {*path.split("/")}}
    for path in sums.keys() - kept.keys():
        if is_outermost(path, _PAUSES):
            around = path
            while around := outer_phase(around, kept):
                kept[around] = max(0.0, kept[around] - sums[path])
    return kept


def looked_note(evidence: Evidence) -> str:
    """Where phases were looked at in some steps only: in how many."""
    profiled = sum(step.profiled for step in evidence.loop.steps)
    return (
        ""
        if profiled == len(evidence.loop.steps)
        else f"Phases were looked at in {profiled:,} of {len(evidence.loop.steps):,} steps."
    )


def _as_all_saw(evidence: Evidence, sums: dict[str, float]) -> dict[str, float]:
    """Phases that every step has need nobody to speak for them: their sum is known, and what it was inside is not."""
    last = {path: path.rpartition("/")[2] for step in evidence.loop.steps for path in step.phases}
    for name in dict.fromkeys(name for name in last.values() if name not in PROFILED_PHASES):
        known_s = float(evidence.loop.phase_s(name).sum())
        said_s = sum(seconds for path, seconds in sums.items() if last[path] == name)
        if said_s > 0:
            sums |= {path: seconds * known_s / said_s for path, seconds in sums.items() if last[path] == name}
        else:
            sums[name] = known_s
    return sums


# -- settings ------------------------------------------------------------------------------------------------------


def setting_rows(recording: Recording) -> tuple[SettingRow, ...]:
    """Every setting of every loader; what was not asked for or cannot be told is a dash."""
    return tuple(
        SettingRow(
            loader=loader_name(loader),
            name=name,
            requested=_value(setting.requested),
            in_force=_value(setting.in_force),
            changed=None not in (setting.requested, setting.in_force) and setting.requested != setting.in_force,
        )
        for loader in recording.loaders.values()
        for name, setting in loader.settings.items()
    )


def loader_name(loader: LoaderLine) -> str:
    """As the script calls it, or by its number."""
    return loader.name or f"loader {loader.loader}"


def _value(value: object) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"
