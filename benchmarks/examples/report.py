"""Turn the runs of an example into lines with targets and a table that shows the effect of each habit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.document import Finding
from benchmarks.examples.meter import Pace
from benchmarks.examples.runs import Measured
from benchmarks.result import Line, Table, median_ratio
from penstock.demo.stages import loss_agreement

TARGETS = {"distill": 5.0, "reid": 8.0, "segment": 3.0}
"""Ratios of samples/s to those with the report's habits, on an H200 with 16 cores. On a CPU, where loader and step
share two cores, the target is only to be no slower."""
DATA_SHARE = 0.05
"""Share of the time in which the device may have no batch."""
TOLERANCE = 0.02
"""Largest relative difference of the loss of a step, between Pillow's pixels and ours, and between 32 and 16 bits."""
COLUMNS = ("variant", "it/s", "samples/s", "data share", "samples/s relative to default")
NOTE = (
    "Every run is in a new process, with its data in the page cache, and the first seconds are not counted. Figures "
    "are medians of the rounds; ratios are those of runs in turns with the default. The data share is the part of the "
    "time in which the device had no batch: on a GPU by its own clock, copies included; on a CPU as the loop measures "
    "it. Losses are compared step by step over the same samples in the same order; for that comparison `--before` is "
    "without reid's uncached sampler, because no two samplers draw the same samples."
)


def findings(measured: Measured, command: str) -> Iterator[Finding]:
    name, gpu = measured.example, not measured.device.startswith("CPU")
    default, before = _median(measured.default), _median(measured.before)
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
    losses = loss_agreement(measured.before_losses, measured.default_losses, same_pixels=False)
    last = measured.default_losses[losses.steps - 1], measured.before_losses[losses.steps - 1]
    yield Line(
        f"{name}: largest difference of the losses of the first {losses.steps} steps",
        f"last loss: {last[0]:.4f}",
        f"--before: {last[1]:.4f}",
        losses.largest,
        TOLERANCE,
        "at most",
    )
    yield _table(measured, command)


def _table(measured: Measured, command: str) -> Table:
    rows = [
        _row("default", measured.default, measured.default),
        _row("--before", measured.before, measured.default),
        *(
            _row(f"default with habit {habit}", paces, measured.default_beside_habits)
            for habit, paces in measured.with_habit.items()
        ),
    ]
    return Table(f"{measured.example}, {measured.device} (`{command}`)", COLUMNS, rows, NOTE)


def _row(variant: str, paces: Sequence[Pace], default: Sequence[Pace]) -> tuple[str, ...]:
    """Return a row of the table; `default` are the runs that took turns with those of the variant."""
    pace, ratio = _median(paces), median_ratio(_rates(paces), _rates(default))
    return variant, f"{pace.iterations_s:.3g}", f"{pace.samples_s:,.0f}", f"{pace.data_share:.1%}", f"{ratio:.2f}"


def _median(paces: Sequence[Pace]) -> Pace:
    """Return the median run; of an even number, the slower of the middle two."""
    return sorted(paces, key=lambda pace: pace.samples_s)[(len(paces) - 1) // 2]


def _rates(paces: Sequence[Pace]) -> list[float]:
    return [pace.samples_s for pace in paces]
