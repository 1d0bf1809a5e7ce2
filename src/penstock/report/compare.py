"""Two runs side by side: what differs by more than their own ups and downs."""

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
from penstock.report.markdown import escaped
from penstock.report.numbers import IN_THE_WAIT, loader_name, outer_phase, phase_means
from penstock.report.text import table
from penstock.verify.measures import (
    ENOUGH_BLOCKS,
    Answer,
    Measure,
    RunMeasure,
    cycles,
    main_loader,
    measure,
    namesake,
    samples,
)

SAME_BATCH = 0.01
"""Batch sizes that differ by less are the same."""

_Column = Callable[[Evidence], Floats]
"""One value per batch of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer is that of the first measure, the rate; the others say where it comes from."""

    measures: tuple[Measure, ...]
    notes: tuple[str, ...]

    @property
    def answer(self) -> Answer:
        """Whether b feeds more samples a second than a."""
        return self.measures[0].answer


def compare(a: Recording, b: Recording) -> Comparison:
    """The loader that took most of a's time, against its namesake in b."""
    left = main_loader(a, "the first recording")
    right = namesake(b, left.loader, "the second recording")
    known = not np.isnan(left.loop.samples_per_batch) and not np.isnan(right.loop.samples_per_batch)
    same = known and abs(right.loop.samples_per_batch / left.loop.samples_per_batch - 1) < SAME_BATCH
    pair = _RunPair(left, right, per_sample=known and not same)
    return Comparison(measures=tuple(_measures(pair, known)), notes=tuple(_notes(pair, known)))


@dataclass(frozen=True, slots=True)
class _RunPair:
    left: Evidence
    right: Evidence
    per_sample: bool
    """Times are given per sample: the batches differ in size."""

    @property
    def unit(self) -> str:
        return "s/sample" if self.per_sample else "s/batch"


# -- what is measured ----------------------------------------------------------------------------------------------


def _measures(pair: _RunPair, known: bool) -> Iterator[Measure]:
    def both(top: _Column, bottom: _Column) -> tuple[RunMeasure, RunMeasure]:
        left, right = (RunMeasure(top(run), bottom(run), run.settings.num_workers) for run in (pair.left, pair.right))
        return left, right

    counts = samples if known else _ones
    per = samples if pair.per_sample else _ones
    yield measure("rate", "samples/s" if known else "batches/s", *both(counts, cycles), more_is_better=True)
    yield measure("share waiting", "share", *both(_wait, cycles))
    yield measure("wait", pair.unit, *both(_wait, per))
    yield measure("step", pair.unit, *both(lambda run: run.loop.busy_s, per))
    for name in _shared_phases(pair.left, pair.right):
        where = "wait" if name == IN_THE_WAIT else "step"
        columns: tuple[_Column, _Column] = partial(_phase, name), per
        if name in PROFILED_PHASES:
            columns = partial(_spoken_for, columns[0]), partial(_spoken_for, per)
        yield measure(f"{where}: {name}", pair.unit, *both(*columns))
    if pair.left.workers.fetches and pair.right.workers.fetches:
        made = partial(_fetched, pair.per_sample)
        yield measure("worker", pair.unit, *both(lambda run: run.workers.fetch_s, made))


def _wait(run: Evidence) -> Floats:
    return run.loop.wait_s


def _ones(run: Evidence) -> Floats:
    return np.ones(len(run.loop.steps))


def _fetched(per_sample: bool, run: Evidence) -> Floats:
    return np.array([fetch.samples if per_sample else 1 for fetch in run.workers.fetches], np.float64)


def _shared_phases(left: Evidence, right: Evidence) -> list[str]:
    """Outermost phases that are among the longest of both runs; pauses are no part of a step."""
    here, there = phase_means(left), phase_means(right)
    return [name for name in here if name in there and not outer_phase(name, here)]


def _phase(name: str, evidence: Evidence) -> Floats:
    return np.array([step.phases.get(name, 0.0) for step in evidence.loop.steps])


def _spoken_for(column: _Column, evidence: Evidence) -> Floats:
    """Of the steps that were looked at, each as much as it speaks for: taken so often it would look too sure."""
    times = evidence.loop.represented
    return (column(evidence) * times)[times > 0]


def _notes(pair: _RunPair, known: bool) -> Iterator[str]:
    left, right = pair.left, pair.right
    if loader_name(left.loader) != loader_name(right.loader):
        yield f"Different loaders: {loader_name(left.loader)} and {loader_name(right.loader)}."
    if not known:
        yield "Samples were not counted in both: rates are in batches, which says nothing if their sizes differ."
    if pair.per_sample:
        yield f"Batches of {left.loop.samples_per_batch:.3g} and {right.loop.samples_per_batch:.3g}: times are per sample."
    for which, run in (("first", left), ("second", right)):
        if len(run.loop.steps) // max(run.settings.num_workers, 1) < ENOUGH_BLOCKS:
            rounds = f"{len(run.loop.steps)} steps with {run.settings.num_workers} workers"
            yield f"The {which} run is too short to judge: {rounds}; record {ENOUGH_BLOCKS} batches per worker or more."
    yield "One run each: what differs from run to run with the same settings is not in the intervals."


# -- how it is shown -----------------------------------------------------------------------------------------------

_COLUMNS = ("", "a", "b", "b/a", "95%", "")


def comparison_text(comparison: Comparison) -> Group:
    """For a terminal: the answer, the table, what to keep in mind."""
    rows = (_row(found) for found in comparison.measures)
    grid = table(_title(comparison), _COLUMNS, rows, right=_COLUMNS[1:5])
    lines = (comparison_sentence(comparison), *comparison.notes)
    sentence, *notes = (Text(printable(line)) for line in lines)
    return Group(sentence, Text(), grid, *notes)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The same for programs."""
    measures = [{**asdict(found), "ratio": found.ratio} for found in comparison.measures]
    answer, sentence = comparison.answer, comparison_sentence(comparison)
    return {"answer": answer, "sentence": sentence, "measures": measures, "notes": list(comparison.notes)}


def _title(comparison: Comparison) -> str:
    per = next(found.unit[2:] for found in comparison.measures if found.unit.startswith("s/"))
    return f"times per {per}"


def comparison_markdown(comparison: Comparison) -> str:
    """The same as a table of Markdown, and the notes."""
    rows = [f"| {_title(comparison)} | a | b | b/a | 95% | |", "|---|--:|--:|--:|--:|---|"]
    rows += [f"| {' | '.join(escaped(cell) for cell in _row(found))} |" for found in comparison.measures]
    notes = "\n".join(f"- {escaped(note)}" for note in comparison.notes)
    return f"{comparison_sentence(comparison)}\n\n" + "\n".join(rows) + f"\n\n{notes}\n"


def comparison_sentence(comparison: Comparison) -> str:
    """What may be said of the rate."""
    rate = comparison.measures[0]
    if rate.low is None or rate.high is None or rate.ratio is None:
        return "Inconclusive: too little was recorded to tell the runs apart."
    span = f"{rate.low:.2f} to {rate.high:.2f}"
    if rate.answer == "inconclusive":
        return f"Inconclusive: b runs at {rate.ratio:.2f}× the rate of a, but 95% of the resamples lie in {span}."
    return f"{rate.answer.capitalize()}: b runs at {rate.ratio:.2f}× the rate of a (95%: {span})."


def _row(found: Measure) -> tuple[str, ...]:
    ratio = "–" if found.ratio is None else f"{found.ratio:.2f}×"
    span = "–" if found.low is None else f"{found.low:.2f} to {found.high:.2f}"
    values = (_value(found.a, found.unit), _value(found.b, found.unit))
    named = f"{found.name}, {found.unit}" if found.unit.endswith("/s") else found.name
    return named, *values, ratio, span, found.answer


def _value(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.1%}"
    if unit.startswith("s/"):
        return format_duration(value)
    return format_number(value)
