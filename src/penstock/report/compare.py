"""`penstock compare`: which measures of two runs differ by more than their variation within each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from penstock.core.format import format_duration, format_number
from penstock.core.types import Floats
from penstock.diagnose.evidence.evidence import Evidence
from penstock.errors import printable
from penstock.recording.format import PROFILED_PHASES
from penstock.recording.reader import Recording
from penstock.report.run_summary import SAMPLER, loader_name, outer_phase, phase_means
from penstock.report.text import escape_markdown, table
from penstock.verify.measures import (
    MIN_BLOCKS,
    Answer,
    Measure,
    RunMeasure,
    batch_samples,
    batch_seconds,
    main_loader,
    measure,
    same_loader,
)

SAME_BATCH = 0.01
"""Batch sizes that differ by less than this share count as equal."""

_Column = Callable[[Evidence], Floats]
"""Returns one value per batch of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The measures of two runs; the first one, the rate, decides the answer."""

    measures: tuple[Measure, ...]
    notes: tuple[str, ...]

    @property
    def answer(self) -> Answer:
        """Whether run b delivers more samples per second than run a."""
        return self.measures[0].answer


def compare(a: Recording, b: Recording) -> Comparison:
    """Compare the loader that took most of the time of run a with the loader of the same name in run b."""
    left = main_loader(a, "the first recording")
    right = same_loader(b, left.loader, "the second recording")
    size_a, size_b = left.loop.samples_per_batch, right.loop.samples_per_batch
    known = not np.isnan(size_a) and not np.isnan(size_b)
    same = known and abs(size_b / size_a - 1) < SAME_BATCH
    pair = _RunPair(left, right, per_sample=known and not same)
    return Comparison(measures=tuple(_measures(pair, known)), notes=tuple(_notes(pair, known)))


@dataclass(frozen=True, slots=True)
class _RunPair:
    left: Evidence
    right: Evidence
    per_sample: bool
    """Whether times are per sample, because the batch sizes differ."""

    @property
    def unit(self) -> str:
        return "s/sample" if self.per_sample else "s/batch"


# -- measures ------------------------------------------------------------------------------------------------------


def _measures(pair: _RunPair, known: bool) -> Iterator[Measure]:
    def both(top: _Column, bottom: _Column) -> tuple[RunMeasure, RunMeasure]:
        left, right = (RunMeasure(top(run), bottom(run), run.settings.num_workers) for run in (pair.left, pair.right))
        return left, right

    counts = batch_samples if known else _ones
    per = batch_samples if pair.per_sample else _ones
    yield measure("rate", "samples/s" if known else "batches/s", *both(counts, batch_seconds), more_is_better=True)
    yield measure("share waiting", "share", *both(_wait, batch_seconds))
    yield measure("wait", pair.unit, *both(_wait, per))
    yield measure("step", pair.unit, *both(lambda run: run.loop.busy_s, per))
    for name in _shared_phases(pair.left, pair.right):
        part = "wait" if name == SAMPLER else "step"
        columns: tuple[_Column, _Column] = partial(_phase, name), per
        if name in PROFILED_PHASES:
            columns = partial(_represented, columns[0]), partial(_represented, per)
        yield measure(f"{part}: {name}", pair.unit, *both(*columns))
    if pair.left.workers.fetches and pair.right.workers.fetches:
        fetched = partial(_fetched, pair.per_sample)
        yield measure("worker", pair.unit, *both(lambda run: run.workers.fetch_s, fetched))


def _wait(run: Evidence) -> Floats:
    return run.loop.wait_s


def _ones(run: Evidence) -> Floats:
    return np.ones(len(run.loop.steps))


def _fetched(per_sample: bool, run: Evidence) -> Floats:
    return np.array([fetch.samples if per_sample else 1 for fetch in run.workers.fetches], np.float64)


def _shared_phases(left: Evidence, right: Evidence) -> list[str]:
    """Return the outermost phases that are among the longest of both runs; pauses are no part of a step."""
    left_phases, right_phases = phase_means(left), phase_means(right)
    return [name for name in left_phases if name in right_phases and not outer_phase(name, left_phases)]


def _phase(name: str, evidence: Evidence) -> Floats:
    return np.array([step.phases.get(name, 0.0) for step in evidence.loop.steps])


def _represented(column: _Column, evidence: Evidence) -> Floats:
    """Return the values of the timed steps only, each weighted with the number of steps that it represents.

    Repeating a value that often instead would make the interval too narrow.
    """
    weights = evidence.loop.represented
    return (column(evidence) * weights)[weights > 0]


def _notes(pair: _RunPair, known: bool) -> Iterator[str]:
    left, right = pair.left, pair.right
    if loader_name(left.loader) != loader_name(right.loader):
        yield f"Different loaders: {loader_name(left.loader)} and {loader_name(right.loader)}."
    if not known:
        yield (
            "Samples were not counted in both runs: rates are in batches, which cannot be compared if the batch sizes "
            "differ."
        )
    if pair.per_sample:
        sizes = f"{left.loop.samples_per_batch:.3g} and {right.loop.samples_per_batch:.3g}"
        yield f"Batches of {sizes}: times are per sample."
    for which, run in (("first", left), ("second", right)):
        workers = run.settings.num_workers
        if len(run.loop.steps) // max(workers, 1) < MIN_BLOCKS:
            yield (
                f"The {which} run is too short to judge: {len(run.loop.steps)} steps with {workers} workers; record "
                f"{MIN_BLOCKS} batches per worker or more."
            )
    yield "One run each: the variation between runs with the same settings is not in the intervals."


# -- text ----------------------------------------------------------------------------------------------------------

_COLUMNS = ("", "a", "b", "b/a", "95%", "")


def comparison_text(comparison: Comparison) -> Group:
    """Return the answer, the table and the notes for a terminal."""
    rows = (_row(found) for found in comparison.measures)
    grid = table(_title(comparison), _COLUMNS, rows, right=_COLUMNS[1:5])
    lines = (comparison_sentence(comparison), *comparison.notes)
    sentence, *notes = (Text(printable(line)) for line in lines)
    return Group(sentence, Text(), grid, *notes)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values for JSON."""
    measures = [{**asdict(found), "ratio": found.ratio} for found in comparison.measures]
    answer, sentence = comparison.answer, comparison_sentence(comparison)
    return {"answer": answer, "sentence": sentence, "measures": measures, "notes": list(comparison.notes)}


def comparison_markdown(comparison: Comparison) -> str:
    """Return the answer, the table and the notes as Markdown."""
    rows = [f"| {_title(comparison)} | a | b | b/a | 95% | |", "|---|--:|--:|--:|--:|---|"]
    rows += [f"| {' | '.join(escape_markdown(cell) for cell in _row(found))} |" for found in comparison.measures]
    notes = "\n".join(f"- {escape_markdown(note)}" for note in comparison.notes)
    return f"{comparison_sentence(comparison)}\n\n" + "\n".join(rows) + f"\n\n{notes}\n"


def comparison_sentence(comparison: Comparison) -> str:
    """Return a sentence on the difference of the rates."""
    rate = comparison.measures[0]
    if rate.low is None or rate.high is None or rate.ratio is None:
        return "Inconclusive: too little was recorded to distinguish the runs."
    span = f"{rate.low:.2f} to {rate.high:.2f}"
    if rate.answer == "inconclusive":
        return f"Inconclusive: b runs at {rate.ratio:.2f}× the rate of a, but 95% of the resamples lie in {span}."
    return f"{rate.answer.capitalize()}: b runs at {rate.ratio:.2f}× the rate of a (95%: {span})."


def _title(comparison: Comparison) -> str:
    per = next(found.unit[2:] for found in comparison.measures if found.unit.startswith("s/"))
    return f"times per {per}"


def _row(found: Measure) -> tuple[str, ...]:
    ratio = "–" if found.ratio is None else f"{found.ratio:.2f}×"
    span = "–" if found.low is None else f"{found.low:.2f} to {found.high:.2f}"
    values = (_value(found.a, found.unit), _value(found.b, found.unit))
    name = f"{found.name}, {found.unit}" if found.unit.endswith("/s") else found.name
    return name, *values, ratio, span, found.answer


def _value(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.1%}"
    if unit.startswith("s/"):
        return format_duration(value)
    return format_number(value)
