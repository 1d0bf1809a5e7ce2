"""The facts about a run that its reports share: key numbers, the parts of the mean step, settings and machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from penstock.core.format import format_bytes, format_duration
from penstock.diagnose.evidence.evidence import Evidence, gather
from penstock.diagnose.evidence.loop import PAUSES, is_outermost
from penstock.recording.format import PROFILED_PHASES, LoaderLine
from penstock.recording.reader import Recording

WAIT, REST = "wait", "rest of the step"
SAMPLER = "sampler"
"""The one phase that is part of the loader's time, not of the step's."""

_PAUSES = frozenset(PAUSES)
MAX_PHASES = 24
"""Number of phases that are listed; the time of shorter ones is in the rest of the step."""
MAX_DEPTH = 16
"""Levels of nested phases that are distinguished."""
VALUE_LENGTH = 120
"""Characters of a setting's value; a longer one is cut and ends in "…"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumbers:
    """The key numbers of a loader, over its steady steps: the first batch of an epoch counts as start-up."""

    loader: LoaderLine
    epochs: int
    batches: int
    samples_per_s: float | None
    batches_per_s: float
    wait_share: float
    """Share of the loop's time that was spent in the loader."""
    wait_s: float
    step_s: float
    """The loop's own time per batch: the time of a step if its data were always there."""
    startup_s: float | None
    """Mean wait for the first batch of an epoch."""
    gpu: float | None
    """Mean GPU utilisation over devices and time; None if it was not sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One part of the mean step, with its position in the step."""

    name: str
    depth: int
    """0: a part of the step; 1: a part of the part above; and so on."""
    start_s: float
    seconds: float
    share: float
    """Share of the whole step, wait included."""
    device_s: float | None = None
    """Seconds of the same phase by the device's clock, where it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """A setting of a loader; `changed` if the value in force is not the requested one."""

    loader: str
    name: str
    requested: str
    in_force: str
    changed: bool


def main_evidence(recording: Recording) -> Evidence | None:
    """Return the evidence of the loader with the longest wait; None if no loader has a steady step."""
    return next((evidence for evidence in gather(recording) if evidence.loop.steps), None)


def no_steps_text(recording: Recording) -> str:
    """Return the sentence for a recording without such a loader."""
    return "No steps were recorded" + (" but the first of an epoch" if recording.steps else "")


def run_numbers(evidence: Evidence) -> RunNumbers:
    """Return the key numbers of a loader with at least one steady step."""
    loop = evidence.loop
    rate = len(loop.steps) / loop.steady_s if loop.steady_s > 0 else 0.0
    return RunNumbers(
        loader=evidence.loader,
        epochs=len({step.epoch for step in loop.all_steps}),
        batches=len(loop.all_steps),
        samples_per_s=None if np.isnan(loop.samples_per_batch) else rate * loop.samples_per_batch,
        batches_per_s=rate,
        wait_share=loop.wait_share,
        wait_s=float(loop.wait_s.mean()),
        step_s=float(loop.busy_s.mean()),
        startup_s=float(loop.startup_s.mean()) if len(loop.startup_s) else None,
        gpu=_gpu_utilisation(evidence),
    )


def _gpu_utilisation(evidence: Evidence) -> float | None:
    values = [gpu.utilisation for line in evidence.machine.system for gpu in line.gpus]
    return float(np.mean(values)) if values else None


# -- the parts of the mean step ------------------------------------------------------------------------------------


def step_parts(evidence: Evidence) -> tuple[StepPart, ...]:
    """Return the mean step in order: the wait, each phase with its inner phases, and the time outside all phases."""
    host, device = phase_means(evidence), phase_means(evidence, on_device=True)
    wait_s, cycle_s = float(evidence.loop.wait_s.mean()), evidence.loop.cycle_s

    def part(path: str, depth: int, start_s: float, seconds: float) -> StepPart:
        share = seconds / cycle_s if cycle_s > 0 else 0.0
        position = {"start_s": start_s, "seconds": seconds, "share": share}
        return StepPart(name=inner_name(path, host), depth=depth, device_s=device.get(path), **position)

    parts = [part(WAIT, 0, 0.0, wait_s)]
    if SAMPLER in host:
        parts.append(part(SAMPLER, 1, 0.0, host.pop(SAMPLER)))
    phases = list(place_phases(host, wait_s))
    parts += [part(*phase) for phase in phases]
    end_s = max((start_s + seconds for _, _, start_s, seconds in phases), default=wait_s)
    if cycle_s > end_s:
        parts.append(part(REST, 0, end_s, cycle_s - end_s))
    return tuple(parts)


def place_phases(phases: dict[str, float], start_s: float) -> Iterator[tuple[str, int, float, float]]:
    """Yield path, depth, start and seconds of phases placed end to end; nested ones begin where the outer one does.

    Recordings contain how long a phase took, not when it began. The order is that in which phases ended first.
    """
    nested: dict[str, list[str]] = {}
    for path in phases:
        nested.setdefault(outer_phase(path, phases), []).append(path)
    pending = [(path, 0) for path in reversed(nested.get("", []))]
    next_start_s = [start_s]  # for each depth
    while pending:
        path, depth = pending.pop()
        phase_start_s = next_start_s[depth]
        yield path, depth, phase_start_s, phases[path]
        next_start_s[depth:] = [phase_start_s + phases[path], phase_start_s]
        pending += [(inner, depth + 1) for inner in reversed(nested.get(path, []))]


def inner_name(path: str, phases: Collection[str]) -> str:
    """Return a phase's name without the path of the phase that contains it."""
    outer = outer_phase(path, phases)
    return path[len(outer) + 1 :] if outer else path


def outer_phase(path: str, phases: Collection[str]) -> str:
    """Return the phase that contains this one, or "" if none does. A slash may also be part of a name."""
    for _ in range(MAX_DEPTH):
        path = path.rpartition("/")[0]
        if not path or path in phases:
            break
    return path if path in phases else ""


def phase_means(evidence: Evidence, *, on_device: bool = False) -> dict[str, float]:
    """Return the seconds per step of the longest phases, in the order they ended first; pauses are no part of a step.

    Device times are means over the steps whose events were read; those of the other steps are unknown.
    """
    sums: dict[str, float] = {}
    counts = evidence.loop.represented
    if on_device:
        counts = counts * np.array([bool(step.device_phases) for step in evidence.loop.steps])
    for step, count in zip(evidence.loop.steps, counts, strict=True):
        if count:
            for name, seconds in (step.device_phases if on_device else step.phases).items():
                sums[name] = sums.get(name, 0.0) + count * seconds
    if not on_device and not evidence.loop.represented.all():
        sums = _with_exact_sums(evidence, sums)
    sums = _without_pauses(sums)
    longest = set(sorted(sums, key=lambda name: -sums[name])[:MAX_PHASES])
    return {name: total / int(counts.sum()) for name, total in sums.items() if name in longest}


def _without_pauses(sums: dict[str, float]) -> dict[str, float]:
    """Remove evaluation and checkpoints, also from the phases that contain them."""
    kept = {path: total for path, total in sums.items() if not _PAUSES & {*path.split("/")}}
    for path in sums.keys() - kept.keys():
        if is_outermost(path, _PAUSES):
            outer = path
            while outer := outer_phase(outer, kept):
                kept[outer] = max(0.0, kept[outer] - sums[path])
    return kept


def _with_exact_sums(evidence: Evidence, sums: dict[str, float]) -> dict[str, float]:
    """Replace the estimates of phases that are timed in every step by their exact sums.

    The exact sum is over all paths with that name, since steps without timed phases do not contain the outer phase.
    """
    names = {path: path.rpartition("/")[2] for step in evidence.loop.steps for path in step.phases}
    for name in dict.fromkeys(name for name in names.values() if name not in PROFILED_PHASES):
        exact_s = float(evidence.loop.phase_s(name).sum())
        estimated_s = sum(seconds for path, seconds in sums.items() if names[path] == name)
        if estimated_s > 0:
            sums |= {path: seconds * exact_s / estimated_s for path, seconds in sums.items() if names[path] == name}
        else:
            sums[name] = exact_s
    return sums


def timed_steps_note(evidence: Evidence) -> str:
    """Return in how many steps phases were timed, or "" if that was in all of them."""
    steps = evidence.loop.steps
    timed = sum(step.profiled for step in steps)
    return "" if timed == len(steps) else f"Phases were timed in {timed:,} of {len(steps):,} steps."


# -- settings and machine ------------------------------------------------------------------------------------------


def setting_rows(recording: Recording) -> tuple[SettingRow, ...]:
    """Return every setting of every loader; a value that was not requested or is not known is a dash."""
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
    """Return the loader's name in the script, or its number."""
    return loader.name or f"loader {loader.loader}"


def _value(value: object) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}…"


def machine_rows(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield names and values: when the run began and ended, its rank, and the machine; unknown values are left out."""
    run, machine = recording.run, recording.run.machine
    if run.began_unix_s > 0:
        yield "began", _date(run.began_unix_s)
    if recording.end is not None:
        yield (
            "ended",
            f"after {format_duration(recording.end.at_s)}, {recording.end.how}, exit code {recording.end.exit_code}",
        )
    else:
        yield "ended", "not recorded: killed, still running, or the file is cut short"
    if run.world_size > 1:
        yield "rank", f"{run.rank} of {run.world_size}"
    quota = "" if machine.quota_cores is None else f", quota {machine.quota_cores:g}"
    yield "cores", f"{machine.usable_cores} usable of {machine.cores}{quota}"
    if machine.memory_bytes:
        limit = machine.memory_limit_bytes
        yield "memory", format_bytes(machine.memory_bytes) + (f", limit {format_bytes(limit)}" if limit else "")
    if machine.gpus:
        counts = Counter((gpu.name, gpu.memory_bytes) for gpu in machine.gpus)
        yield "GPUs", ", ".join(_gpus(count, *gpu) for gpu, count in counts.items())
    software = {"python": machine.python, "torch": machine.torch, "penstock": run.penstock, "": machine.platform}
    yield "software", ", ".join(f"{name} {version}".strip() for name, version in software.items() if version) or "–"


def _date(unix_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{unix_s:g} s since 1970, which is no date"


def _gpus(count: int, name: str, memory_bytes: int) -> str:
    memory = f" ({format_bytes(memory_bytes)})" if memory_bytes else ""
    return f"{count} × {name}{memory}"
