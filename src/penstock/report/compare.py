"""`penstock compare`: which measures of two runs differ by more than their variation within each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from rich.console import Group
from rich.text import Text

from penstock.core.format import format_duration, format_number, format_percent
from penstock.core.types import Floats
from penstock.diagnose.evidence.evidence import Evidence
from penstock.errors import printable
from penstock.recording.format import PROFILED_PHASES
from penstock.recording.reader import Recording
from penstock.report.run_summary import SAMPLER, loader_name, outer_phase, phase_means
from penstock.report.text import escape_markdown, table
from penstock.verify.judge import MIN_STEPS, judge
from penstock.verify.measures import (
    MIN_BLOCKS,
    Answer,
    Measure,
    RunMeasure,
    answer_for,
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
    names: tuple[str, str] = ("a", "b")
    """The names of both sides, such as those of their files."""

    @property
    def answer(self) -> Answer:
        """Whether run b delivers more samples per second than run a."""
        return self.measures[0].answer


Runs = Recording | Sequence[Recording]
"""The recording of a run, or those of several runs of the same training."""


def compare(a: Runs, b: Runs, names: tuple[str, str] = ("a", "b")) -> Comparison:
    """Compare the loader that took most of the time of run a with the loader of the same name in run b.

    With several runs of each, the intervals include the variation between runs, as in `penstock verify`.
    """
    first, *others = (a,) if isinstance(a, Recording) else a
    left = main_loader(first, f"the recording {names[0]}" if names[0] != "a" else "the first recording")
    called = f"the recording {names[1]}" if names[1] != "b" else "the second recording"
    lefts = (left, *(same_loader(run, left.loader, called) for run in others))
    rights = [same_loader(run, left.loader, called) for run in ((b,) if isinstance(b, Recording) else b)]
    sizes = [[run.loop.samples_per_batch for run in runs] for runs in (lefts, rights)]
    known = not np.isnan(sizes[0] + sizes[1]).any()
    same = known and abs(sizes[1][0] / sizes[0][0] - 1) < SAME_BATCH
    pair = _RunPair(lefts, tuple(rights), per_sample=known and not same)
    return Comparison(measures=tuple(_measures(pair, known)), notes=tuple(_notes(pair, known)), names=names)


@dataclass(frozen=True, slots=True)
class _RunPair:
    lefts: tuple[Evidence, ...]
    rights: tuple[Evidence, ...]
    per_sample: bool
    """Whether times are per sample, because the batch sizes differ."""

    @property
    def left(self) -> Evidence:
        """The first of the runs before."""
        return self.lefts[0]

    @property
    def right(self) -> Evidence:
        """The first of the runs after."""
        return self.rights[0]

    @property
    def unit(self) -> str:
        return "s/sample" if self.per_sample else "s/batch"


# -- measures ------------------------------------------------------------------------------------------------------


def _measures(pair: _RunPair, known: bool) -> Iterator[Measure]:
    counts = batch_samples if known else _ones
    per = batch_samples if pair.per_sample else _ones
    rate_unit = "samples/s" if known else "batches/s"
    yield _measure(pair, "rate", rate_unit, counts, batch_seconds, more_is_better=True)
    yield _measure(pair, "share waiting", "share", _wait, batch_seconds)
    yield _measure(pair, "wait", pair.unit, _wait, per)
    yield _measure(pair, "step", pair.unit, lambda run: run.loop.busy_s, per)
    for name in _shared_phases(pair.left, pair.right):
        part = "wait" if name == SAMPLER else "step"
        columns: tuple[_Column, _Column] = partial(_phase, name), per
        if name in PROFILED_PHASES:
            columns = partial(_represented, columns[0]), partial(_represented, per)
        yield _measure(pair, f"{part}: {name}", pair.unit, *columns)
    if all(run.workers.fetches for run in (*pair.lefts, *pair.rights)):
        fetched = partial(_fetched, pair.per_sample)
        yield _measure(pair, "worker", pair.unit, lambda run: run.workers.fetch_s, fetched)


def _measure(
    pair: _RunPair, name: str, unit: str, top: _Column, bottom: _Column, *, more_is_better: bool = False
) -> Measure:
    """Compare a quantity; with several runs of each, the interval includes the variation between them."""
    lefts, rights = ([*_each(runs, top, bottom)] for runs in (pair.lefts, pair.rights))
    if len(lefts) + len(rights) == 2:
        return measure(name, unit, lefts[0], rights[0], more_is_better=more_is_better)
    a, b = (float(np.mean([run.value for run in runs])) for runs in (lefts, rights))
    unknown = Measure(name=name, unit=unit, a=a, b=b, low=None, high=None, answer="inconclusive")
    if any(run.value <= 0 or len(run.denominator) < MIN_STEPS for run in (*lefts, *rights)):
        return unknown
    found = judge(lefts, rights)
    if found.low is None or found.high is None:
        return unknown
    answer = answer_for(found.low, found.high, more_is_better=more_is_better)
    means = found.before_samples_s, found.after_samples_s
    return replace(unknown, a=means[0], b=means[1], low=found.low, high=found.high, answer=answer)


def _each(runs: Sequence[Evidence], top: _Column, bottom: _Column) -> Iterator[RunMeasure]:
    return (RunMeasure(top(run), bottom(run), run.settings.num_workers) for run in runs)


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
    for which, run in (*(("first", run) for run in pair.lefts), *(("second", run) for run in pair.rights)):
        workers = run.settings.num_workers
        if len(run.loop.steps) // max(workers, 1) < MIN_BLOCKS:
            yield (
                f"The {which} run is too short to judge: {len(run.loop.steps)} steps with {workers} workers; record "
                f"{MIN_BLOCKS} batches per worker or more."
            )
    if len(pair.lefts) + len(pair.rights) == 2:
        yield "One run each: the variation between runs with the same settings is not in the intervals."


# -- the gate of CI ------------------------------------------------------------------------------------------------

GateAnswer = Literal["passed", "slower", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Whether the runs after are slower than those before by a given share, or more."""

    answer: GateAnswer
    sentence: str


def gate(comparison: Comparison, share: float) -> Gate:
    """Return the answer of `--fail-if-slower`, by the interval of the ratio of the rates.

    1. It lies wholly above 1 - share: passed, a slowdown of that share is excluded.
    2. It lies wholly below 1 and reaches down to 1 - share: slower, and a slowdown of that share is not excluded.
    3. It holds both 1 and 1 - share, or is not known: inconclusive.
    """
    rate, limit = comparison.measures[0], 1 - share
    if rate.low is None or rate.high is None:
        return Gate(answer="inconclusive", sentence="Inconclusive: too little was recorded for an interval.")
    span = f"the rate is {rate.low:.3f} to {rate.high:.3f} times that before"
    if rate.low > limit:
        return Gate(answer="passed", sentence=f"Passed: not slower by {format_percent(share)} or more; {span}.")
    if rate.high < 1:
        return Gate(answer="slower", sentence=f"Failed: slower, perhaps by {format_percent(share)} or more; {span}.")
    return Gate(
        answer="inconclusive",
        sentence=f"Inconclusive: neither no change nor a slowdown by {format_percent(share)} is excluded; {span}. "
        "Record longer, or more runs of each.",
    )


# -- text ----------------------------------------------------------------------------------------------------------


def comparison_text(comparison: Comparison) -> Group:
    """Return the answer, the table and the notes for a terminal."""
    rows = (_row(found) for found in comparison.measures)
    columns = ("", *comparison.names, "ratio", "95%", "")
    grid = table(_title(comparison), columns, rows, right=columns[1:5])
    lines = (comparison_sentence(comparison), *comparison.notes)
    sentence, *notes = (Text(printable(line)) for line in lines)
    return Group(sentence, Text(), grid, *notes)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values for JSON."""
    measures = [{**asdict(found), "ratio": found.ratio} for found in comparison.measures]
    answer, sentence = comparison.answer, comparison_sentence(comparison)
    names = list(comparison.names)
    return {
        "names": names,
        "answer": answer,
        "sentence": sentence,
        "measures": measures,
        "notes": list(comparison.notes),
    }


def comparison_markdown(comparison: Comparison) -> str:
    """Return the answer, the table and the notes as Markdown."""
    a, b = map(escape_markdown, comparison.names)
    rows = [f"| {_title(comparison)} | {a} | {b} | ratio | 95% | |", "|---|--:|--:|--:|--:|---|"]
    rows += [f"| {' | '.join(escape_markdown(cell) for cell in _row(found))} |" for found in comparison.measures]
    notes = "\n".join(f"- {escape_markdown(note)}" for note in comparison.notes)
    return f"{comparison_sentence(comparison)}\n\n" + "\n".join(rows) + f"\n\n{notes}\n"


def comparison_sentence(comparison: Comparison) -> str:
    """Return a sentence on the difference of the rates."""
    rate, (a, b) = comparison.measures[0], comparison.names
    if rate.low is None or rate.high is None or rate.ratio is None:
        return "Inconclusive: too little was recorded to distinguish the runs."
    span = f"{rate.low:.2f} to {rate.high:.2f}"
    if rate.answer == "inconclusive":
        return f"Inconclusive: {b} runs at {rate.ratio:.2f}× the rate of {a}, but 95% of the resamples lie in {span}."
    return f"{rate.answer.capitalize()}: {b} runs at {rate.ratio:.2f}× the rate of {a} (95%: {span})."


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
