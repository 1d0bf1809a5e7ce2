"""`penstock probe` and `penstock run --probe compute`: the measurements as tables, and what they mean for training."""

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
from penstock.report.doctor import as_checks, curve_rows
from penstock.report.text import table

CROWDED = 0.6
"""If workers keep less than this share of their speed beside the others, the row is marked."""
UNHINDERED = 0.8
"""Workers that keep at least this share of their speed do not slow each other down."""
PINNING_PAYS = 1.2
"""If copies from ordinary memory take at least this many times as long as from pinned memory, the row says so."""


def probe_rows(probes: Probes) -> Iterator[Check]:
    """Yield the rows in the order of the data flow; a skipped probe is a row with the reason."""
    rows: dict[str, tuple[Any, Callable[[Any], Iterator[Check]]]] = {
        "storage": (probes.storage, _storage),
        "decode": (probes.decode, _decode),
        "ipc": (probes.ipc, _ipc),
        "copy": (probes.copy, _copy),
    }
    for name, (result, result_rows) in rows.items():
        if isinstance(result, SkippedProbe):
            yield Check(name, "skipped", result.reason, CheckStatus.UNKNOWN)
        elif result is not None:
            yield from result_rows(result)


def _storage(found: StorageProbe) -> Iterator[Check]:
    return as_checks(curve_rows(found.storage, found.curve, time.time() - found.curve.measured_unix_s))


def _decode(rates: DecodeRates) -> Iterator[Check]:
    first, *more = rates.points
    size = f"{format_bytes(rates.sample_bytes)} ({format_bytes(rates.decoded_bytes)} decoded)"
    meaning = (
        f"{format_duration(rates.cpu_s_per_sample)} of a core for a sample of {size}, "
        f"over {rates.samples} samples of {rates.source}: a faster storage cannot help beyond this."
    )
    yield _crowded(first) if first.cores_per_worker < UNHINDERED else Check(_name(first), _rate(first), meaning)
    for point in more:
        yield _crowded(point) if point.cores_per_worker < UNHINDERED else _scaling(rates, point)
    if rates.bad:
        value = f"{rates.bad} of {rates.bad + rates.samples}"
        meaning = "Samples that did not decode, or have another shape; `penstock shards check` names them."
        yield Check("decode, bad", value, meaning, CheckStatus.ATTENTION)


def _scaling(rates: DecodeRates, point: DecodePoint) -> Check:
    scaling = rates.scaling(point)
    if scaling >= UNHINDERED:
        meaning = f"Each worker keeps {min(scaling, 1):.0%} of its speed: every worker has a core of its own."
        return Check(_name(point), _rate(point), meaning)
    meaning = f"Each worker keeps {scaling:.0%} of its speed: cores share caches, memory or their own threads."
    status = CheckStatus.ATTENTION if scaling < CROWDED else CheckStatus.GOOD
    return Check(_name(point), _rate(point), meaning, status)


def _crowded(point: DecodePoint) -> Check:
    """Return the row of a point whose workers did not get their cores: its rate holds for this moment only."""
    meaning = (
        f"{format_duration(point.cpu_s_per_sample)} of a core for a sample, but each worker got only "
        f"{point.cores_per_worker:.0%} of a core: another program computes here, or a CPU quota applies."
    )
    return Check(_name(point), _rate(point), meaning, CheckStatus.ATTENTION)


def _rate(point: DecodePoint) -> str:
    return f"{point.samples_per_s:,.0f} samples/s"


def _name(point: DecodePoint) -> str:
    return f"decode, {format_count(point.workers, 'worker')}"


def _ipc(cost: IpcCost) -> Iterator[Check]:
    size = f"{cost.batch_size} samples ({format_bytes(cost.batch_bytes)})"
    meaning = (
        f"One worker of a torch DataLoader delivers at most {cost.samples_per_s:,.0f} samples/s "
        f"in batches of {size}, if making them costs nothing."
    )
    yield Check("ipc", f"{format_duration(cost.batch_s)} a batch", meaning)
    if cost.main_cpu_s > 0:
        most = cost.batch_size / cost.main_cpu_s
        meaning = f"CPU time of the training process per batch: at most {most:,.0f} samples/s with any workers."
        yield Check("ipc, loop", f"{format_duration(cost.main_cpu_s)} a batch", meaning)


def _copy(rates: CopyRates) -> Iterator[Check]:
    pinned = f"{format_duration(rates.pinned_s)} for a batch of {format_bytes(rates.batch_bytes)}"
    meaning = f"{pinned}, beside the step if it is requested so (non_blocking=True)."
    yield Check("copy, pinned", format_byte_rate(rates.pinned_bytes_per_s), meaning)
    times = rates.pageable_s / rates.pinned_s
    pageable = f"{format_duration(rates.pageable_s)} for the same batch, and the step waits for it"
    if times > PINNING_PAYS:
        meaning = f"{pageable}: pin_memory=True is {times:.1f} times as fast."
    else:
        meaning = f"{pageable}."
    yield Check("copy, pageable", format_byte_rate(rates.pageable_bytes_per_s), meaning)


# -- the step of a script ------------------------------------------------------------------------------------------

COLUMNS = ("the step", "steps/s", "samples/s", "a step takes", "steps")
CHANCE = 0.05
"""Steps whose times differ by a smaller share than this count as equally long."""


def script_probe_text(found: ScriptProbe) -> RenderableType:
    """Return a row for each measurement, and the conclusions."""
    rows = [_row(name, timed, found.samples) for name, timed in _measurements(found) if timed is not None]
    parts: list[RenderableType] = []
    if rows:
        parts.append(table("The step, on a batch that is there already", COLUMNS, rows, right=COLUMNS[1:]))
    parts += [Text(printable(sentence)) for sentence in _conclusions(found)]
    return Group(*parts)


def _measurements(found: ScriptProbe) -> Iterator[tuple[str, StepTime | None]]:
    yield "with its own data", found.data
    yield "alone", found.alone
    yield f"beside {format_count(found.burners, 'busy process', 'busy processes')}", found.beside


def _row(name: str, timed: StepTime, samples: int | None) -> tuple[str, ...]:
    rate = 1 / timed.step_s
    samples_s = "–" if samples is None else f"{rate * samples:,.4g}"
    return name, f"{rate:,.4g}", samples_s, format_duration(timed.step_s), f"{timed.steps:,}"


def _conclusions(found: ScriptProbe) -> Iterator[str]:
    if found.data is None:
        yield "The step with its own data was not measured over a whole round of the workers."
    if found.step is None:
        yield f"Not all was measured: {found.why or 'the script ended before'}."
        return
    alone, beside = (f"{1 / timed.step_s:,.4g}" for timed in (found.step.alone, found.step.beside))
    yield f"With any loader at most {alone} steps/s, and {beside} while workers keep the cores busy."
    if found.data is not None:
        yield _waiting(found.data.step_s, found.step)


def _waiting(data_s: float, step: StepProbe) -> str:
    """Return whether the step waits for data.

    A step that takes longer with its own data than beside busy processes waits. Between the times alone and beside busy
    processes, the reason may also be a missing core.
    """
    if data_s > step.beside.step_s * (1 + CHANCE) and data_s > step.alone.step_s:
        times = data_s / step.beside.step_s
        return f"With its own data a step takes {times:.3g} times as long: `penstock run` shows what it waits for."
    if data_s <= step.alone.step_s * (1 + CHANCE):
        return "It hardly waits for data: the step itself limits the rate."
    return "Whether it waits for data or for a core, this cannot show: use `penstock run`."
