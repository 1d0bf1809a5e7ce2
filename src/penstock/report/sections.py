"""What the page says in words and numbers, section by section."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from penstock.core.format import format_duration, format_number, format_percent
from penstock.core.hops import Hop
from penstock.core.stats import GpuTimes
from penstock.diagnose.evidence.evidence import Evidence
from penstock.recording.reader import Recording
from penstock.report.close_up import CloseUp
from penstock.report.numbers import RunNumbers, loader_name, looked_note, numbers, parts
from penstock.report.plots import StepStrip

percent = partial(format_percent, unit=" %")


@dataclass(frozen=True, slots=True)
class _Tile:
    label: str
    value: str
    note: str = ""
    hot: bool = False


def of_steps(evidence: Evidence, drawn: StepStrip, window: CloseUp) -> dict[str, Any]:
    """What can be said where there are steps."""
    found, rows = numbers(evidence), parts(evidence)
    return {
        "strip": drawn,
        "strip_note": _strip_note(evidence, found, drawn),
        "lanes_note": _lanes_note(evidence, window),
        "tiles": _tiles(evidence, found),
        "parts": rows,
        "looked_note": looked_note(evidence),
        "on_device": any(part.device_s is not None for part in rows),
        "cycle_s": evidence.loop.cycle_s or 1.0,
        "workers": evidence.settings.num_workers,
    }


def _tiles(evidence: Evidence, found: RunNumbers) -> list[_Tile]:
    rate, unit = found.samples_per_s, "samples/s"
    if rate is None:
        rate, unit = found.batches_per_s, "batches/s"
    alone = rate * evidence.loop.cycle_s / found.step_s if found.step_s > 0 else None
    tiles = [
        _Tile("rate", format_number(rate), unit),
        _Tile("waiting for data", percent(found.wait_share), "of the loop's time", hot=found.wait_share >= 0.1),
        _Tile("step alone", format_duration(found.step_s), f"= {format_number(alone)} {unit}" if alone else ""),
        _Tile("longest wait", format_duration(float(evidence.loop.wait_s.max())), f"in {found.batches:,} batches"),
    ]
    if found.gpu is not None:
        tiles.append(_Tile("GPU utilisation", percent(found.gpu), "on average"))
    return tiles


def _strip_note(evidence: Evidence, found: RunNumbers, drawn: StepStrip) -> str:
    note = f"{drawn.slow:,} of {len(evidence.loop.steps):,} batches were slow"
    note += " (▾)." if drawn.marks else "."
    if "mean" in drawn.plot.series:
        note += " Each column shows many: lowest and highest (pale), and the mean."
    if found.startup_s is not None:
        note += f" The first batch of a pass is left out: it took {format_duration(found.startup_s)} to come."
    if evidence.loop.pause_s.any():
        note += f" So are {format_duration(float(evidence.loop.pause_s.sum()))} of evaluation and checkpoints."
    return note


def _lanes_note(evidence: Evidence, window: CloseUp) -> str:
    worst = evidence.loop.steps[int(evidence.loop.wait_s.argmax())]
    note = f"Batch {worst.batch} of pass {worst.epoch} came after {format_duration(worst.wait_s)}"
    if worst.ready is not None and worst.outstanding is not None:
        note += f", with {worst.ready} of {worst.outstanding} batches ready"
    if worst.worker is not None and worst.worker >= 0:
        note += f", from worker {worst.worker}"
    return f"{note}; {window.hidden}." if window.hidden else f"{note}."


def run_hops(recording: Recording) -> list[Hop]:
    """The hops of the first loader that has any, between its first line and its last."""
    lines = [line for line in recording.hops if line.loader == recording.hops[0].loader]
    if not lines:
        return []
    first, last = ({name: Hop(name, *sums) for name, sums in line.hops.items()} for line in (lines[0], lines[-1]))
    return [_between(first.get(name), hop) for name, hop in last.items()]


def _between(before: Hop | None, now: Hop) -> Hop:
    """Sums that went down were begun anew: then the last line's are all there is."""
    if before is None or before == now:
        return now
    hop = now.since(before)
    return hop if min(hop.busy_s, hop.starved_s, hop.blocked_s) >= 0 else now


def card_note(recording: Recording) -> str:
    """What the card's own clock says of the first loader that sends batches to one; nothing if none does."""
    lines = [line for line in recording.hops if line.gpu_times is not None]
    lines = [line for line in lines if line.loader == lines[0].loader]
    if len(lines) < 2 or lines[-1].at_s <= lines[0].at_s:
        return ""
    first, last = (GpuTimes(*(line.gpu_times or ())) for line in (lines[0], lines[-1]))
    times, seconds = last.since(first), lines[-1].at_s - lines[0].at_s
    copying, exposed, stalled = (percent(part / seconds) for part in astuple(times))
    return (
        f"By its own clock the card had nothing to do for the training in {stalled} of the time. "
        f"Batches were on their way to it in {copying}, and it waited for that in {exposed}."
    )


def loader_rows(recording: Recording) -> list[dict[str, Any]]:
    """Each loader, what it delivered and how long the loop waited for it; the longest waits first."""
    batches, waited_s = dict.fromkeys(recording.loaders, 0), dict.fromkeys(recording.loaders, 0.0)
    for step in recording.steps:
        batches[step.loader] += 1
        waited_s[step.loader] += step.wait_s
    return [
        {"name": loader_name(loader), "type": loader.type, "dataset": loader.dataset or "–",
         "batches": f"{batches[number]:,}", "waited_s": waited_s[number]}
        for number, loader in sorted(recording.loaders.items(), key=lambda item: -waited_s[item[0]])
    ]  # fmt: skip
