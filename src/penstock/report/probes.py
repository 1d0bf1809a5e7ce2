"""What the probes found, as rows: a number, and what it means for training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from penstock.core.format import format_byte_rate, format_bytes, format_count, format_duration
from penstock.errors import printable
from penstock.plan.doctor.check import Check, CheckStatus
from penstock.probe.results import (
    CopyRates,
    DecodePoint,
    DecodeRates,
    IpcCost,
    Probes,
    ScriptProbe,
    SkippedProbe,
    StepProbe,
    StepTime,
    StorageProbe,
)
from penstock.report.doctor import as_checks
from penstock.report.storage import curve_rows
from penstock.report.text import table

CROWDED = 0.6
"""Workers that keep less than this share of their speed beside the others are in each other's way."""
UNHINDERED = 0.8
"""From this share on they are not."""


def probe_rows(probes: Probes) -> Iterator[Check]:
    """In the order of the data's way; what was skipped is a row with the reason."""
    rows: dict[str, tuple[Any, Callable[[Any], Iterator[Check]]]] = {
        "storage": (probes.storage, _storage),
        "decode": (probes.decode, _decode),
        "ipc": (probes.ipc, _ipc),
        "copy": (probes.copy, _copy),
    }
    for name, (result, words) in rows.items():
        if isinstance(result, SkippedProbe):
            yield Check(name, "skipped", result.reason, CheckStatus.UNKNOWN)
        elif result is not None:
            yield from words(result)


def _storage(found: StorageProbe) -> Iterator[Check]:
    return as_checks(curve_rows(found.storage, found.curve, time.time() - found.curve.measured_unix_s))


def _decode(rates: DecodeRates) -> Iterator[Check]:
    first, *more = rates.points
    size = f"{format_bytes(rates.sample_bytes)} ({format_bytes(rates.decoded_bytes)} decoded)"
    meaning = (
        f"{format_duration(rates.cpu_s_per_sample)} of a core for a sample of {size}, "
        f"over {rates.samples} samples of {rates.source}: no storage is faster than this."
    )
    if first.cores_per_worker < UNHINDERED:
        yield _crowded(first)
    else:
        yield Check(_workers(first.workers), _rate(first), meaning)
    for point in more:
        scaling = rates.scaling(point)
        if point.cores_per_worker < UNHINDERED:
            yield _crowded(point)
        elif scaling >= UNHINDERED:
            meaning = f"Each worker keeps {min(scaling, 1):.0%} of its speed: the cores are really there."
            yield Check(_workers(point.workers), _rate(point), meaning)
        else:
            meaning = f"Each worker keeps {scaling:.0%} of its speed: cores share caches, memory or their own threads."
            yield Check(
                _workers(point.workers),
                _rate(point),
                meaning,
                CheckStatus.ATTENTION if scaling < CROWDED else CheckStatus.GOOD,
            )
    if rates.bad:
        value = f"{rates.bad} of {rates.bad + rates.samples}"
        meaning = "Samples that did not decode, or have another shape; `penstock shards check` names them."
        yield Check("decode, bad", value, meaning, CheckStatus.ATTENTION)


def _crowded(point: DecodePoint) -> Check:
    """The rate holds for this moment only; what a sample costs holds for others, too."""
    meaning = (
        f"{format_duration(point.cpu_s_per_sample)} of a core for a sample, but each worker got only "
        f"{point.cores_per_worker:.0%} of a core: somebody else computes here, or a quota holds it back."
    )
    return Check(_workers(point.workers), _rate(point), meaning, CheckStatus.ATTENTION)


def _rate(point: DecodePoint) -> str:
    return f"{point.samples_per_s:,.0f} samples/s"


def _workers(count: int) -> str:
    return f"decode, {format_count(count, 'worker')}"


def _ipc(cost: IpcCost) -> Iterator[Check]:
    size = f"{cost.batch_size} samples ({format_bytes(cost.batch_bytes)})"
    meaning = (
        f"One worker of a torch DataLoader passes on at most {cost.samples_per_s:,.0f} samples/s "
        f"in batches of {size}, if making them costs nothing."
    )
    yield Check("ipc", f"{format_duration(cost.batch_s)} a batch", meaning)
    if cost.main_cpu_s > 0:
        most = cost.batch_size / cost.main_cpu_s
        meaning = f"Of the training loop's own time, for every batch: at most {most:,.0f} samples/s with any workers."
        yield Check("ipc, loop", f"{format_duration(cost.main_cpu_s)} a batch", meaning)


def _copy(rates: CopyRates) -> Iterator[Check]:
    batch = f"{format_duration(rates.pinned_s)} for a batch of {format_bytes(rates.batch_bytes)}"
    yield Check(
        "copy, pinned",
        format_byte_rate(rates.pinned_bytes_per_s),
        f"{batch}, beside the step if it is asked for (non_blocking=True).",
    )
    times = rates.pageable_s / rates.pinned_s
    batch = f"{format_duration(rates.pageable_s)} for the same batch"
    value = format_byte_rate(rates.pageable_bytes_per_s)
    if times > 1.2:
        meaning = f"{batch}, and the step waits for it: pin_memory=True is {times:.1f} times as fast."
    else:
        meaning = f"{batch}, and the step waits for it."
    yield Check("copy, pageable", value, meaning)


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
    yield f"beside {format_count(found.burners, 'busy process', 'busy processes')}", found.beside


def _row(name: str, timed: StepTime, samples: int | None) -> tuple[str, ...]:
    rate = 1 / timed.step_s
    each = "–" if samples is None else f"{rate * samples:,.4g}"
    return name, f"{rate:,.4g}", each, format_duration(timed.step_s), f"{timed.steps:,}"


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
