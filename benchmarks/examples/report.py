"""What the runs come to: a line for each figure to reach, and a table with every habit put back alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.document import Finding
from benchmarks.examples.meter import Pace
from benchmarks.examples.runs import Measured
from benchmarks.result import Line, Table, median_ratio
from penstock.demo.stages import loss_agreement

TARGETS = {"distill": 5.0, "reid": 8.0, "segment": 3.0}
"""Samples/s over the report's, on an H200 with 16 cores; on a CPU, where both share two cores, not to lose."""
DATA_SHARE = 0.05
TOLERANCE = 0.02
"""Of the loss of a step, between Pillow's pixels and ours, and between 32 and 16 bits."""
COLUMNS = ("way", "it/s", "samples/s", "data share", "samples/s of the default")
NOTE = (
    "Every run in a fresh process, data in the page cache, the first seconds left out; medians of the rounds, "
    "ratios of runs in turns with the default. Data "
    "share: of the time, how much the device had no batch; on a GPU by its own clock, copies included, on a CPU as the "
    "loop sees it. Losses are compared step by step over the same samples in the same order; with `--before` reid's "
    "uncached sampler is left out of that comparison, since no two samplers draw the same."
)


def findings(measured: Measured, command: str) -> Iterator[Finding]:
    name, gpu = measured.example, not measured.device.startswith("CPU")
    default, before = _typical(measured.default), _typical(measured.before)
    yield Line(
        f"{name}: samples/s",
        f"{default.samples_s:,.0f}",
        f"--before: {before.samples_s:,.0f}",
        median_ratio(_rates(measured.default), _rates(measured.before)),
        TARGETS[name] if gpu else 1.0,
        "at least",
    )
    if gpu:
        shares = f"{default.data_share:.1%}", f"--before: {before.data_share:.0%}"
        yield Line(f"{name}: data share of the step", *shares, default.data_share, DATA_SHARE, "at most")
    same = loss_agreement(measured.before_losses, measured.default_losses, same_pixels=False)
    last = measured.default_losses[same.steps - 1], measured.before_losses[same.steps - 1]
    yield Line(
        f"{name}: losses of the first {same.steps} steps apart, at most",
        f"the last: {last[0]:.4f}",
        f"--before: {last[1]:.4f}",
        same.largest,
        TOLERANCE,
        "at most",
    )
    yield _table(measured, command)


def _table(measured: Measured, command: str) -> Table:
    rows = [
        _row("default", measured.default, measured.default),
        _row("--before", measured.before, measured.default),
        *(_row(f"default, but for: {habit}", paces, measured.beside) for habit, paces in measured.ablated.items()),
    ]
    return Table(f"{measured.example}, {measured.device} (`{command}`)", COLUMNS, rows, NOTE)


def _row(way: str, paces: Sequence[Pace], default: Sequence[Pace]) -> tuple[str, ...]:
    """The last figure is of runs in turns with the default, round by round."""
    pace, ratio = _typical(paces), median_ratio(_rates(paces), _rates(default))
    return way, f"{pace.iterations_s:.3g}", f"{pace.samples_s:,.0f}", f"{pace.data_share:.1%}", f"{ratio:.2f}"


def _typical(paces: Sequence[Pace]) -> Pace:
    """The one in the middle; of two, the slower."""
    return sorted(paces, key=lambda pace: pace.samples_s)[(len(paces) - 1) // 2]


def _rates(paces: Sequence[Pace]) -> list[float]:
    return [pace.samples_s for pace in paces]
