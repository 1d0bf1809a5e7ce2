"""What a probe of a script's step found, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.errors import printable
from penstock.plan.probes.results import StepProbe, StepTime
from penstock.plan.probes.scripted import ScriptProbe
from penstock.report.text import human_duration, table

COLUMNS = ("the step", "steps/s", "samples/s", "a step takes", "steps")
CHANCE = 0.05
"""A step that takes less than such a part longer takes as long."""


def script_probe_text(found: ScriptProbe) -> RenderableType:
    """A row for each measurement, and what follows from them."""
    rows = [_row(name, timed, found.samples) for name, timed in _measured(found) if timed is not None]
    parts: list[RenderableType] = []
    if rows:
        parts.append(table("The step, on a batch that is there already", COLUMNS, rows, right=COLUMNS[1:]))
    parts += [Text(printable(sentence)) for sentence in _sentences(found)]
    return Group(*parts)


def _measured(found: ScriptProbe) -> Iterator[tuple[str, StepTime | None]]:
    yield "with its own data", found.data
    yield "alone", found.alone
    yield f"beside {found.burners} busy process{'' if found.burners == 1 else 'es'}", found.beside


def _row(name: str, timed: StepTime, samples: int | None) -> tuple[str, ...]:
    rate = 1 / timed.step_s
    each = "–" if samples is None else f"{rate * samples:,.4g}"
    return name, f"{rate:,.4g}", each, human_duration(timed.step_s), f"{timed.steps:,}"


def _sentences(found: ScriptProbe) -> Iterator[str]:
    if found.data is None:
        yield "What it does with its own data was not seen for a whole round of the workers."
    if found.step is None:
        yield f"Not all was measured: {found.why or 'the script ended before'}."
        return
    alone, beside = (f"{1 / timed.step_s:,.4g}" for timed in (found.step.alone, found.step.beside))
    yield f"With any loader at most {alone} steps/s, and {beside} while workers keep the cores busy."
    if found.data is not None:
        yield _waiting(found.data.step_s, found.step)


def _waiting(data_s: float, step: StepProbe) -> str:
    """What is beyond a step on busy cores is waiting; what is between that and an idle machine may be either."""
    if data_s > step.beside.step_s * (1 + CHANCE) and data_s > step.alone.step_s:
        times = data_s / step.beside.step_s
        return f"With its own data a step takes {times:.3g} times as long: `penstock run` says what it waits for."
    if data_s <= step.alone.step_s * (1 + CHANCE):
        return "It waits for no data worth mentioning: the step itself sets the pace."
    return "Whether it waits for data or for a core, this does not tell: `penstock run` does."
