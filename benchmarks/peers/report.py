"""What the race says: a line for each figure to reach, a table with everybody for each kind of shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.peers.compare import BARE, DEFAULT, OURS, PACKED, Entry, Result, Results
from benchmarks.peers.environment import pinned
from benchmarks.peers.kinds import KINDS
from benchmarks.result import Line, Table, median_ratio


@dataclass(frozen=True)
class Targets:
    """How many times a contestant's rate ours has to be."""

    field: float
    own: float
    """webdataset and SPDL with their own decoders."""
    ours: float
    """Any peer that is given our decode function."""
    bare: float | None = None


TARGETS = {
    "sa1b": Targets(field=4, own=2.5, ours=1.4, bare=0.9),
    "sa1b-heavy": Targets(field=4, own=2.5, ours=1.4, bare=0.9),
    "imagenet": Targets(field=4.5, own=3, ours=1.8),
    "imagenet-heavy": Targets(field=4.5, own=3, ours=1.8),
    "reid": Targets(field=5.5, own=5, ours=3.3),
}
PACKED_TARGET = 12.0
"""After `penstock shards pack`, against the field reports' loader on the shards as they were."""
FIRST_BATCH_TARGET = 0.5
"""Of webdataset's time to the first batch, at the better of its two decoders."""

NAMES = {
    "penstock": "Penstock",
    "bare": "bare decode loop",
    "field": "field reports' loader",
    "webdataset": "webdataset",
    "spdl": "SPDL",
    "dali": "DALI (CPU)",
    "litdata": "litdata",
    "mosaic": "MosaicML Streaming",
}
PACKAGES = {
    "webdataset": "webdataset",
    "spdl": "spdl",
    "dali": "nvidia-dali-cuda130",
    "litdata": "litdata",
    "mosaic": "mosaicml-streaming",
}
COLUMNS = (
    "contestant", "decoder", "workers", "samples/s", "Penstock is", "first batch", "peak memory", "CPU per sample",
)  # fmt: skip
NOTE = (
    "Every contestant delivered every key once, in the same shapes and types, and with our decoder the same values. "
    "Each run is a process of its own; figures are medians over the rounds, at the best of 1, 2 and 4 workers, which a "
    "round before them found (one worker is not tried where four did better than two). "
    "Files are in the page cache. What a contestant makes once for a dataset (our index, "
    "DALI's, the shards of litdata and MosaicML) is not timed. The bare loop decodes from memory in threads and hands "
    "nothing over: small samples are held back there by the interpreter's lock."
)


def lines(results: Results) -> Iterator[Line]:
    """One for each figure to reach whose contestants have both arrived."""
    for kind, of_kind in results.items():
        arrived = {result.entry: result for result in of_kind if result.failure is None}
        for entry, ours, target in _pairs(kind):
            if entry in arrived and ours in arrived:
                yield _rate_line(kind, arrived[ours], arrived[entry], target)
        if OURS in arrived:
            yield from _first_batch_line(kind, arrived[OURS], list(arrived.values()))


def _pairs(kind: str) -> Iterator[tuple[Entry, Entry, float]]:
    """Whom we are measured against, with what, and the figure to reach."""
    targets = TARGETS.get(kind)
    if targets is None:
        return
    yield Entry("field", "own"), OURS, targets.field
    for peer in ("webdataset", "spdl"):
        yield Entry(peer, "own"), OURS, targets.own
    for peer in ("field", "webdataset", "spdl", "litdata", "mosaic"):
        yield Entry(peer, "ours"), OURS, targets.ours
    if targets.bare is not None:
        yield BARE, OURS, targets.bare
    if kind == "sa1b":
        yield Entry("field", "own"), PACKED, PACKED_TARGET


def _rate_line(kind: str, ours: Result, other: Result, target: float) -> Line:
    given = ", our decoder" if other.entry.decoder == "ours" and other.entry != BARE else ""
    return Line(
        f"{KINDS[kind].name}{' packed' if ours.entry.packed else ''} against {NAMES[other.entry.loader]}{given}",
        f"{_typical(ours, 'rate'):,.0f} samples/s",
        f"{_typical(other, 'rate'):,.0f}",
        median_ratio(_figures(ours, "rate"), _figures(other, "rate")),
        target,
        "at least",
    )


def _first_batch_line(kind: str, ours: Result, arrived: Sequence[Result]) -> Iterator[Line]:
    rivals = [result for result in arrived if result.entry.loader == "webdataset"]
    if rivals:
        other = min(rivals, key=lambda result: _typical(result, "first_batch_s"))
        yield Line(
            f"{KINDS[kind].name}: time to first batch",
            f"{_typical(ours, 'first_batch_s') * 1e3:.0f} ms",
            f"webdataset: {_typical(other, 'first_batch_s') * 1e3:.0f} ms",
            median_ratio(_figures(ours, "first_batch_s"), _figures(other, "first_batch_s")),
            FIRST_BATCH_TARGET,
            "at most",
        )


def tables(results: Results) -> Iterator[Table]:
    """Everybody, the fastest first, those without a result last."""
    for kind, of_kind in results.items():
        arrived = [result for result in of_kind if result.failure is None]
        arrived.sort(key=lambda result: -_typical(result, "rate"))
        ours = next((result for result in arrived if result.entry == OURS), None)
        rows = [_row(result, ours) for result in arrived]
        rows += [_missing_row(result) for result in of_kind if result.failure is not None]
        samples = f", {arrived[0].runs[0].samples:,} samples" if arrived else ""
        yield Table(f"{KINDS[kind].name} shards{samples}", COLUMNS, rows, NOTE)


def _row(result: Result, ours: Result | None) -> tuple[str, ...]:
    cpu = [run.cpu_s_per_sample for run in result.runs if run.cpu_s_per_sample is not None]
    against_us = ours is not None and result.entry != OURS
    return (
        _name(result.entry),
        result.entry.decoder,
        "default" if result.workers == DEFAULT else str(result.workers),
        f"{_typical(result, 'rate'):,.0f}",
        f"{median_ratio(_figures(ours, 'rate'), _figures(result, 'rate')):.2f}×" if ours and against_us else "",
        f"{_typical(result, 'first_batch_s') * 1e3:,.0f} ms",
        f"{_typical(result, 'peak_memory_bytes') / 2**20:,.0f} MiB",
        f"{median(cpu) * 1e3:.2f} ms" if cpu else "",
    )


def _missing_row(result: Result) -> tuple[str, ...]:
    return _name(result.entry), result.entry.decoder, "", f"out: {result.failure}", "", "", "", ""


def _name(entry: Entry) -> str:
    package = PACKAGES.get(entry.loader)
    version = f" {pinned()[package]}" if package else ""
    return NAMES[entry.loader] + version + (", packed shards" if entry.packed else "")


def _figures(result: Result, figure: str) -> list[float]:
    return [float(getattr(run, figure)) for run in result.runs]


def _typical(result: Result, figure: str) -> float:
    return median(_figures(result, figure))
