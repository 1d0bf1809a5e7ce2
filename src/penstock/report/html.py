"""One run as one HTML file: verdict, numbers, plots, findings. It needs no network and opens from disk."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from penstock.core.finding import Diagnosis
from penstock.core.format import format_duration
from penstock.errors import printable
from penstock.recording.reader import Recording
from penstock.report.close_up import close_up
from penstock.report.diagnosis import full_stop, gain_words, impact_words
from penstock.report.machine import machine_rows
from penstock.report.numbers import main_evidence, setting_rows, without_steps
from penstock.report.plots import ready, strip, throughput, utilisation
from penstock.report.sections import card_note, loader_rows, of_steps, percent, run_hops

Points = Sequence[tuple[int, float]]
"""Workers, and samples per second."""

ROWS = 60
"""Of a table at most."""
TEXT_LENGTH = 2000
"""Of one text on the page, in characters."""


def render_html(recording: Recording, diagnosis: Diagnosis, *, curve: Points = (), measured: Points = ()) -> str:
    """The whole page. `curve` is the model's rate against workers, `measured` what runs really gave."""
    evidence = main_evidence(recording)
    page: dict[str, Any] = {
        "diagnosis": diagnosis,
        "command": " ".join(recording.run.command),
        "settings": sorted(setting_rows(recording), key=lambda row: not row.changed),
        "hops": run_hops(recording),
        "card_note": card_note(recording),
        "loaders": loader_rows(recording),
        "machine": list(machine_rows(recording)),
        "notes": list(dict.fromkeys((*diagnosis.notes, *recording.notes))),
        "version": recording.run.penstock,
        "tiles": [],
        "without_steps": without_steps(recording),
        "strip": None,
    }
    for what in ("settings", "hops", "loaders"):
        if len(page[what]) > ROWS:
            page["notes"].append(f"{len(page[what]) - ROWS:,} more {what} are not shown")
            page[what] = page[what][:ROWS]
    figures: dict[str, Any] = {
        "workers": _against_workers(curve, measured),
        "utilisation": utilisation(recording.system, recording.run.machine.usable_cores),
        "throughput": throughput(recording.system),
        "ready": None,
    }
    if evidence is not None:
        drawn = strip(evidence)
        window = close_up(evidence, drawn.period)
        page |= of_steps(evidence, drawn, window)
        figures |= {"strip": drawn, "ready": ready(evidence), "lanes": window}
    return _template().render(
        **page, **_assets(), figures=figures, figures_json=_island(figures),
        gain=gain_words, impact=impact_words, full_stop=full_stop, duration=format_duration, percent=percent,
    )  # fmt: skip


def _against_workers(curve: Points, measured: Points) -> dict[str, Any] | None:
    """Both on one axis; a rate that one of them lacks is None."""
    if not curve and not measured:
        return None
    x = sorted({workers for workers, _ in (*curve, *measured)})
    rates = {"curve": dict(curve), "measured": dict(measured)}
    return {"x": x, **{name: [points.get(workers) for workers in x] for name, points in rates.items()}}


# -- the file ------------------------------------------------------------------------------------------------------


def _island(figures: dict[str, Any]) -> Markup:
    """JSON that cannot leave its script element: ASCII only, and no character that HTML knows."""
    text = json.dumps(figures, default=asdict, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _assets() -> dict[str, Markup]:
    """Our own files, written into the page; the browser runs no other script, by the hashes of these."""
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
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_visible
    )
    return environment.from_string(_read("report.html"))


def _visible(value: Any) -> Any:
    """Control and direction characters in names are spelled out, endless names cut; what is markup is ours."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(value if len(value) <= TEXT_LENGTH else f"{value[:TEXT_LENGTH]}…")
