"""`penstock report`: writes a recording as a web page, a Markdown document or a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli import console
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


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A recording (run.jsonl).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; its suffix selects the format.")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="html, md, or trace (Chrome and Perfetto).  [default: html]")
    ] = None,
    first: Annotated[float, typer.Option("--from", min=0, help="For traces: begin of the window in seconds.")] = 0,
    seconds: Annotated[float, typer.Option(min=0.001, help="For traces: length of the window.")] = 30,
) -> None:
    """Write a page about a run: verdict, steps, workers, findings.

        penstock report run.jsonl -o run.html

    The page needs no network and can be sent to a colleague. With .md it is
    a text in the form of an incident report; with .json a trace of a window
    to open in https://ui.perfetto.dev or chrome://tracing.

    Of several ranks, the page shows the one that delays the others, or that
    waited most; name a rank's own recording to see that one.

    Exit code: 0 written, 2 wrong usage, 3 could not be read or written.
    """
    form = form or FORMATS.get(output.suffix if output else ".html")
    if form is None:
        raise SettingError(f"{output} has no format's suffix", advice="Use .html, .md or .json, or give --format")
    text = trace_json(load(run), first, first + seconds) if form == "trace" else _document(run, form)
    target = output or run.with_suffix({"html": ".html", "md": ".md", "trace": ".trace.json"}[form])
    if target.exists() and target.samefile(run):
        raise SettingError(f"{target} is the recording itself", advice="Name another file with -o")
    target.write_text(text, encoding="utf-8")
    console.print_line(f"{target} written")


def _document(run: Path, form: Format) -> str:
    recording, diagnosis = diagnose_ranks(load_ranks(run), prediction_error())
    if form == "md":
        return render_markdown(recording, diagnosis)
    curve, measured = rates_over_workers(recording)
    return render_html(recording, diagnosis, curve=curve, measured=measured)
