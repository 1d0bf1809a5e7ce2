"""A run as one HTML file: verdict, key numbers, plots and findings. The page needs no network and opens from disk."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from penstock.core.finding import Diagnosis
from penstock.core.format import format_duration, format_number, format_percent
from penstock.core.hops import Hop
from penstock.core.stats import GpuTimes
from penstock.diagnose.evidence.evidence import Evidence
from penstock.errors import printable
from penstock.recording.reader import Recording
from penstock.report.diagnose import finding_gain, impact_sentence
from penstock.report.plots import (
    StepStrip,
    Timeline,
    ready_batches,
    step_strip,
    throughput,
    timeline,
    utilisation,
)
from penstock.report.run_summary import (
    RunNumbers,
    loader_name,
    machine_rows,
    main_evidence,
    no_steps_text,
    run_numbers,
    setting_rows,
    step_parts,
    timed_steps_note,
)
from penstock.report.text import end_sentence

Points = Sequence[tuple[int, float]]
"""Pairs of a number of workers and samples per second."""

MAX_ROWS = 60
"""Most rows of a table."""
TEXT_LENGTH = 2000
"""Most characters of a text on the page."""
HOT_WAIT_SHARE = 0.1
"""Share of waiting from which on its tile is highlighted."""

percent = partial(format_percent, unit=" %")


def render_html(recording: Recording, diagnosis: Diagnosis, *, curve: Points = (), measured: Points = ()) -> str:
    """Return the whole page. `curve` is the model's rate over the number of workers, `measured` the rates of runs."""
    evidence = main_evidence(recording)
    page: dict[str, Any] = {
        "diagnosis": diagnosis,
        "command": " ".join(recording.run.command),
        "settings": sorted(setting_rows(recording), key=lambda row: not row.changed),
        "hops": run_hops(recording),
        "gpu_note": gpu_note(recording),
        "loaders": loader_rows(recording),
        "machine": list(machine_rows(recording)),
        "notes": list(dict.fromkeys((*diagnosis.notes, *recording.notes))),
        "version": recording.run.penstock,
        "tiles": [],
        "no_steps_text": no_steps_text(recording),
        "strip": None,
    }
    for name in ("settings", "hops", "loaders"):
        if len(page[name]) > MAX_ROWS:
            page["notes"].append(f"{len(page[name]) - MAX_ROWS:,} more {name} are not shown")
            page[name] = page[name][:MAX_ROWS]
    figures: dict[str, Any] = {
        "workers": _rates_over_workers(curve, measured),
        "utilisation": utilisation(recording.system, recording.run.machine.usable_cores),
        "throughput": throughput(recording.system),
        "ready": None,
    }
    if evidence is not None:
        strip = step_strip(evidence)
        window = timeline(evidence, strip.period)
        page |= _step_sections(evidence, strip, window)
        figures |= {"strip": strip, "ready": ready_batches(evidence), "timeline": window}
    return _template().render(
        **page, **_assets(), figures=figures, figures_json=_json_island(figures),
        gain=finding_gain, impact=impact_sentence, end_sentence=end_sentence, duration=format_duration, percent=percent,
    )  # fmt: skip


def _rates_over_workers(curve: Points, measured: Points) -> dict[str, Any] | None:
    """Return both series over one x axis; a missing rate is None."""
    if not curve and not measured:
        return None
    x = sorted({workers for workers, _ in (*curve, *measured)})
    rates = {"curve": dict(curve), "measured": dict(measured)}
    return {"x": x, **{name: [points.get(workers) for workers in x] for name, points in rates.items()}}


# -- the sections about steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tile:
    """A key number at the top of the page."""

    label: str
    value: str
    note: str = ""
    hot: bool = False
    """Whether it is highlighted."""


def _step_sections(evidence: Evidence, strip: StepStrip, window: Timeline) -> dict[str, Any]:
    """Return the template's values that exist only if there are steps."""
    numbers, parts = run_numbers(evidence), step_parts(evidence)
    return {
        "strip": strip,
        "strip_note": _strip_note(evidence, numbers, strip),
        "timeline_note": _timeline_note(evidence, window),
        "tiles": _tiles(evidence, numbers),
        "parts": parts,
        "timed_steps_note": timed_steps_note(evidence),
        "on_device": any(part.device_s is not None for part in parts),
        "cycle_s": evidence.loop.cycle_s or 1.0,
        "workers": evidence.settings.num_workers,
    }


def _tiles(evidence: Evidence, numbers: RunNumbers) -> list[_Tile]:
    rate, unit = numbers.samples_per_s, "samples/s"
    if rate is None:
        rate, unit = numbers.batches_per_s, "batches/s"
    alone = rate * evidence.loop.cycle_s / numbers.step_s if numbers.step_s > 0 else None
    hot = numbers.wait_share >= HOT_WAIT_SHARE
    tiles = [
        _Tile("rate", format_number(rate), unit),
        _Tile("waiting for data", percent(numbers.wait_share), "of the loop's time", hot=hot),
        _Tile("step alone", format_duration(numbers.step_s), f"= {format_number(alone)} {unit}" if alone else ""),
        _Tile("longest wait", format_duration(float(evidence.loop.wait_s.max())), f"in {numbers.batches:,} batches"),
    ]
    if numbers.gpu is not None:
        tiles.append(_Tile("GPU utilisation", percent(numbers.gpu), "on average"))
    return tiles


def _strip_note(evidence: Evidence, numbers: RunNumbers, strip: StepStrip) -> str:
    note = f"{strip.slow:,} of {len(evidence.loop.steps):,} batches were slow"
    note += " (▾)." if strip.marks else "."
    if "mean" in strip.plot.series:
        note += " Each column shows many batches: the lowest and the highest value (pale), and the mean."
    if numbers.startup_s is not None:
        note += f" The first batch of an epoch is left out: it took {format_duration(numbers.startup_s)} to arrive."
    if evidence.loop.pause_s.any():
        note += f" So are {format_duration(float(evidence.loop.pause_s.sum()))} of evaluation and checkpoints."
    return note


def _timeline_note(evidence: Evidence, window: Timeline) -> str:
    worst = evidence.loop.steps[int(evidence.loop.wait_s.argmax())]
    note = f"Batch {worst.batch} of epoch {worst.epoch} arrived after {format_duration(worst.wait_s)}"
    if worst.ready is not None and worst.outstanding is not None:
        note += f", with {worst.ready} of {worst.outstanding} batches ready"
    if worst.worker is not None and worst.worker >= 0:
        note += f", from worker {worst.worker}"
    return f"{note}; {window.hidden}." if window.hidden else f"{note}."


# -- the sections about loaders ------------------------------------------------------------------------------------


def run_hops(recording: Recording) -> list[Hop]:
    """Return the hops of the first loader that has any, between its first and its last line."""
    lines = [line for line in recording.hops if line.loader == recording.hops[0].loader]
    if not lines:
        return []
    first, last = ({name: Hop(name, *sums) for name, sums in line.hops.items()} for line in (lines[0], lines[-1]))
    return [_hop_since(first.get(name), hop) for name, hop in last.items()]


def _hop_since(first: Hop | None, last: Hop) -> Hop:
    """Return the difference; if sums went down they were restarted in between, so the last ones are all there is."""
    if first is None or first == last:
        return last
    hop = last.since(first)
    return hop if min(hop.busy_s, hop.starved_s, hop.blocked_s) >= 0 else last


def gpu_note(recording: Recording) -> str:
    """Return what the GPU's own clock shows for the first loader that sends batches to a GPU; "" if none does."""
    lines = [line for line in recording.hops if line.gpu_times is not None]
    lines = [line for line in lines if line.loader == lines[0].loader]
    if len(lines) < 2 or lines[-1].at_s <= lines[0].at_s:
        return ""
    first, last = (GpuTimes(*(line.gpu_times or ())) for line in (lines[0], lines[-1]))
    times, seconds = last.since(first), lines[-1].at_s - lines[0].at_s
    copying, exposed, stalled = (percent(part / seconds) for part in astuple(times))
    return (
        f"By its own clock the GPU had no work of the training in {stalled} of the time. "
        f"Batches were being copied to it in {copying}, and it waited for that in {exposed}."
    )


def loader_rows(recording: Recording) -> list[dict[str, Any]]:
    """Return each loader with its batches and the time the loop waited for them; the longest waits first."""
    batches, waited_s = dict.fromkeys(recording.loaders, 0), dict.fromkeys(recording.loaders, 0.0)
    for step in recording.steps:
        batches[step.loader] += 1
        waited_s[step.loader] += step.wait_s
    return [
        {"name": loader_name(loader), "type": loader.type, "dataset": loader.dataset or "–",
         "batches": f"{batches[number]:,}", "waited_s": waited_s[number]}
        for number, loader in sorted(recording.loaders.items(), key=lambda item: -waited_s[item[0]])
    ]  # fmt: skip


# -- the file ------------------------------------------------------------------------------------------------------


def _json_island(figures: dict[str, Any]) -> Markup:
    """Return JSON that cannot end its script element: ASCII only, and no character with a meaning in HTML."""
    text = json.dumps(figures, default=asdict, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _assets() -> dict[str, Markup]:
    """Return the scripts and styles of the page; because of their hashes the browser runs no other script."""
    scripts = {
        "uplot": f"/*!\n{_read('vendor/uPlot.LICENSE')}*/\n{_read('vendor/uPlot.iife.min.js')}",
        "script": _read("report.js"),
    }
    styles = _read("vendor/uPlot.min.css") + _read("report.css")
    hashes = " ".join(_hash(text) for text in scripts.values())
    return {name: Markup(text) for name, text in {**scripts, "styles": styles, "script_hashes": hashes}.items()}


def _read(name: str) -> str:
    return (files("penstock.report") / "page" / name).read_text("utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalize
    )
    return environment.from_string(_read("report.html"))


def _finalize(value: Any) -> Any:
    """Escape control and direction characters in names, and cut very long names; markup of the package stays."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(value if len(value) <= TEXT_LENGTH else f"{value[:TEXT_LENGTH]}…")
