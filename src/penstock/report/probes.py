"""What the probes found, as rows: a number, and what it means for training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock.plan.doctor.check import Check, Mark
from penstock.plan.probes.results import CopyRates, DecodePoint, DecodeRates, Handover, Probes, Skipped, StorageProbe
from penstock.report.doctor import as_checks
from penstock.report.storage import curve_rows
from penstock.report.text import human_bytes, human_duration, human_rate

CROWDED = 0.6
"""Workers that keep less than this share of their speed beside the others are in each other's way."""
UNHINDERED = 0.8
"""From this share on they are not."""


def probe_rows(probes: Probes) -> Iterator[Check]:
    """In the order of the data's way; what was skipped is a row with the reason."""
    rows: dict[str, tuple[Any, Callable[[Any], Iterator[Check]]]] = {
        "storage": (probes.storage, _storage),
        "decode": (probes.decode, _decode),
        "hand-over": (probes.handover, _handover),
        "copy": (probes.copy, _copy),
    }
    for name, (result, words) in rows.items():
        if isinstance(result, Skipped):
            yield Check(name, "skipped", result.reason, Mark.OPEN)
        elif result is not None:
            yield from words(result)


def _storage(found: StorageProbe) -> Iterator[Check]:
    return as_checks(curve_rows(found.storage, found.curve, time.time() - found.curve.measured_unix_s))


def _decode(rates: DecodeRates) -> Iterator[Check]:
    first, *more = rates.points
    size = f"{human_bytes(rates.sample_bytes)} ({human_bytes(rates.decoded_bytes)} decoded)"
    meaning = (
        f"{human_duration(rates.cpu_s_per_sample)} of a core for a sample of {size}, "
        f"over {rates.samples} samples of {rates.source}: no storage is faster than this."
    )
    if first.cores_each < UNHINDERED:
        yield _crowded(first)
    else:
        yield Check(_workers(first.workers), _rate(first), meaning)
    for point in more:
        scaling = rates.scaling(point)
        if point.cores_each < UNHINDERED:
            yield _crowded(point)
        elif scaling >= UNHINDERED:
            meaning = f"Each worker keeps {min(scaling, 1):.0%} of its speed: the cores are really there."
            yield Check(_workers(point.workers), _rate(point), meaning)
        else:
            meaning = f"Each worker keeps {scaling:.0%} of its speed: cores share caches, memory or their own threads."
            yield Check(_workers(point.workers), _rate(point), meaning, Mark.LOOK if scaling < CROWDED else Mark.GOOD)
    if rates.bad:
        value = f"{rates.bad} of {rates.bad + rates.samples}"
        meaning = "Samples that did not decode, or have another shape; `penstock shards check` names them."
        yield Check("decode, bad", value, meaning, Mark.LOOK)


def _crowded(point: DecodePoint) -> Check:
    """The rate holds for this moment only; what a sample costs holds for others, too."""
    meaning = (
        f"{human_duration(point.cpu_s_per_sample)} of a core for a sample, but each worker got only "
        f"{point.cores_each:.0%} of a core: somebody else computes here, or a quota holds it back."
    )
    return Check(_workers(point.workers), _rate(point), meaning, Mark.LOOK)


def _rate(point: DecodePoint) -> str:
    return f"{point.samples_per_s:,.0f} samples/s"


def _workers(count: int) -> str:
    return f"decode, {count} worker{'s' if count > 1 else ''}"


def _handover(cost: Handover) -> Iterator[Check]:
    size = f"{cost.batch_size} samples ({human_bytes(cost.batch_bytes)})"
    meaning = (
        f"One worker of a torch DataLoader passes on at most {cost.samples_per_s:,.0f} samples/s "
        f"in batches of {size}, if making them costs nothing."
    )
    yield Check("hand-over", f"{human_duration(cost.batch_s)} a batch", meaning)
    if cost.main_cpu_s > 0:
        most = cost.batch_size / cost.main_cpu_s
        meaning = f"Of the training loop's own time, for every batch: at most {most:,.0f} samples/s with any workers."
        yield Check("hand-over, loop", f"{human_duration(cost.main_cpu_s)} a batch", meaning)


def _copy(rates: CopyRates) -> Iterator[Check]:
    batch = f"{human_duration(rates.pinned_s)} for a batch of {human_bytes(rates.batch_bytes)}"
    yield Check(
        "copy, pinned",
        human_rate(rates.pinned_bytes_per_s),
        f"{batch}, beside the step if it is asked for (non_blocking=True).",
    )
    times = rates.pageable_s / rates.pinned_s
    batch = f"{human_duration(rates.pageable_s)} for the same batch"
    value = human_rate(rates.pageable_bytes_per_s)
    if times > 1.2:
        meaning = f"{batch}, and the step waits for it: pin_memory=True is {times:.1f} times as fast."
    else:
        meaning = f"{batch}, and the step waits for it."
    yield Check("copy, pageable", value, meaning)
