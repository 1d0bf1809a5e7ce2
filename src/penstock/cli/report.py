"""`penstock report`: writes a recording as a web page, a Markdown document or a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli import console
from penstock.core.write_file import write_result
from penstock.diagnose.ranks.verdict import diagnose_ranks
from penstock.diagnose.worker_curve import rates_over_workers
from penstock.errors import SettingError
from penstock.recording.ranks import load_ranks
from penstock.recording.reader import load
from penstock.report.html import render_html
from penstock.report.markdown import render_markdown
from penstock.report.trace import trace_json
from penstock.verify.history import prediction_error

Format = Literal["html", "md", "trace"]
FORMATS: dict[str, Format] = {".html": "html", ".md": "md", ".json": "trace"}
TRACE_SECONDS = 30.0


def report(
    run: Annotated[Path, typer.Argument(metavar="RECORDING", help="A recording of `penstock run`.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write; its suffix selects the format."),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="html, md, or trace (Chrome and Perfetto).  [default: html]")
    ] = None,
    first: Annotated[
        float | None,
        typer.Option("--from", min=0, metavar="SECONDS", help="For traces: begin of the window.  [default: 0]"),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="For traces: length of the window.  [default: 30]"),
    ] = None,
) -> None:
    """Write a page about a run: verdict, steps, workers, findings.

        penstock report run.jsonl -o run.html

    The page needs no network and can be sent to a colleague. With .md it is
    a text in the form of an incident report; with .json a trace of a window
    to open in https://ui.perfetto.dev or chrome://tracing.

    Of several ranks, the page shows the one that delays the others, or that
    waited most; name a rank's own recording to see that one.

    Exit code: 0 written, 2 wrong usage or nothing to read, 3 the disk is full.
    """
    form = _format(output, form)
    if form != "trace" and (first is not None or duration is not None):
        raise SettingError("--from and --duration are for traces", advice="Leave them out, or use -o run.json")
    text = _trace(run, first or 0.0, duration or TRACE_SECONDS) if form == "trace" else _document(run, form)
    target = output or run.with_suffix({"html": ".html", "md": ".md", "trace": ".trace.json"}[form])
    if target.exists() and target.samefile(run):
        raise SettingError(f"{target} is the recording itself", advice="Name another file with -o")
    write_result(target, text)
    console.print_line(f"{target} written")


def _format(output: Path | None, form: Format | None) -> Format:
    """Return the format that the option or the suffix of the file names; they must not contradict each other."""
    by_suffix = FORMATS.get(output.suffix.lower()) if output is not None else None
    if form is not None and by_suffix not in (None, form):
        raise SettingError(f"{output} is not the name of a file of format {form}", advice="Give one of the two only")
    if form is None and output is not None and by_suffix is None:
        raise SettingError(f"{output} has no format's suffix", advice="Use .html, .md or .json, or give --format")
    return form or by_suffix or "html"


def _trace(run: Path, first_s: float, seconds: float) -> str:
    """Return a trace of the window; a window after the end of the run is refused, since the trace would be empty."""
    recording = load(run)
    last_s = max((step.at_s + step.wait_s + step.step_s for step in recording.steps), default=0.0)
    if recording.steps and first_s >= last_s:
        raise SettingError(f"--from {first_s:g}: the steps of the run end at {last_s:.1f} s", advice="Begin earlier")
    return trace_json(recording, first_s, first_s + seconds)


def _document(run: Path, form: Format) -> str:
    recording, diagnosis = diagnose_ranks(load_ranks(run), prediction_error())
    if form == "md":
        return render_markdown(recording, diagnosis)
    curve, measured = rates_over_workers(recording)
    return render_html(recording, diagnosis, curve=curve, measured=measured)
