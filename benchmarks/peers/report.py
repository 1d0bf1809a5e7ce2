"""Reports a comparison: a line for each target, and a table of all loaders for each kind of shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.peers.compare import BARE, DEFAULT_WORKERS, OURS, PACKED, Entry, Result, Results
from benchmarks.peers.environment import pinned
from benchmarks.peers.kinds import KINDS
from benchmarks.result import Line, Table, median_ratio


@dataclass(frozen=True)
class Targets:
    """The smallest ratios of Penstock's rate to the rate of another loader that are accepted."""

    field: float
    """The field reports' loader with its own decoder."""
    own: float
    """webdataset and SPDL with their own decoders."""
    ours: float
    """Any peer with our decode functions."""
    bare: float | None = None
    """The bare decode loop; None: no target."""
    dali: float | None = None
    """DALI with its own decoder; None: no target."""


TARGETS = {
    "sa1b": Targets(field=4, own=2.5, ours=1.4, bare=0.9),
    "sa1b-heavy": Targets(field=4, own=2.5, ours=1.4, bare=0.9),
    "imagenet": Targets(field=4.5, own=3, ours=1.8),
    "imagenet-heavy": Targets(field=4.5, own=3, ours=1.8),
    "imagenet-crop": Targets(field=1.5, own=1.5, ours=1.2, dali=1.5),
    "reid": Targets(field=5.5, own=5, ours=3.3),
}
PACKED_TARGET = 12.0
"""Target for shards after `penstock shards pack`, against the field reports' loader on the original shards."""
FIRST_BATCH_TARGET = 0.5
"""Target for the time to the first batch, as a share of webdataset's with the quicker of its two decoders."""

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
    "loader", "decoder", "workers", "samples/s", "Penstock ÷ loader", "first batch", "peak memory", "CPU per sample",
)  # fmt: skip
NOTE = (
    "Every loader delivered every key once, in the same shapes and types, and with our decoder the same values, "
    "unless images are cropped at random. "
    "Each run is a process of its own. Figures are medians over the rounds, with the best of 1, 2 and 4 workers, which "
    "was found in a round before them (1 worker is not tried if 4 did better than 2). Files are in the page cache. "
    "What a loader makes once for a dataset (our index, DALI's, the shards of litdata and MosaicML) is not timed. "
    "The bare loop decodes from memory in threads and delivers no values; with small samples the GIL holds it back."
)


def lines(results: Results) -> Iterator[Line]:
    """Yield a line for each target for which both loaders have a result."""
    for kind, of_kind in results.items():
        succeeded = {result.entry: result for result in of_kind if result.failure is None}
        for entry, ours, target in _pairs(kind):
            if entry in succeeded and ours in succeeded:
                yield _rate_line(kind, succeeded[ours], succeeded[entry], target)
        if OURS in succeeded:
            yield from _first_batch_line(kind, succeeded[OURS], list(succeeded.values()))


def _pairs(kind: str) -> Iterator[tuple[Entry, Entry, float]]:
    """Yield the entry that Penstock is compared with, the entry of Penstock, and the target."""
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
    if targets.dali is not None:
        yield Entry("dali", "own"), OURS, targets.dali
    if kind == "sa1b":
        yield Entry("field", "own"), PACKED, PACKED_TARGET


def _rate_line(kind: str, ours: Result, other: Result, target: float) -> Line:
    decoder = ", our decoder" if other.entry.decoder == "ours" and other.entry != BARE else ""
    return Line(
        f"{KINDS[kind].name}{' packed' if ours.entry.packed else ''} against {NAMES[other.entry.loader]}{decoder}",
        f"{_median_of(ours, 'rate'):,.0f} samples/s",
        f"{_median_of(other, 'rate'):,.0f}",
        median_ratio(_figures(ours, "rate"), _figures(other, "rate")),
        target,
        "at least",
    )


def _first_batch_line(kind: str, ours: Result, succeeded: Sequence[Result]) -> Iterator[Line]:
    others = [result for result in succeeded if result.entry.loader == "webdataset"]
    if others:
        other = min(others, key=lambda result: _median_of(result, "first_batch_s"))
        yield Line(
            f"{KINDS[kind].name}: time to first batch",
            f"{_median_of(ours, 'first_batch_s') * 1e3:.0f} ms",
            f"webdataset: {_median_of(other, 'first_batch_s') * 1e3:.0f} ms",
            median_ratio(_figures(ours, "first_batch_s"), _figures(other, "first_batch_s")),
            FIRST_BATCH_TARGET,
            "at most",
        )


def tables(results: Results) -> Iterator[Table]:
    """Yield a table for each kind: the fastest loader first, loaders without a result last."""
    for kind, of_kind in results.items():
        succeeded = [result for result in of_kind if result.failure is None]
        succeeded.sort(key=lambda result: -_median_of(result, "rate"))
        ours = next((result for result in succeeded if result.entry == OURS), None)
        rows = [_row(result, ours) for result in succeeded]
        rows += [_missing_row(result) for result in of_kind if result.failure is not None]
        samples = f", {succeeded[0].runs[0].samples:,} samples" if succeeded else ""
        yield Table(f"{KINDS[kind].name} shards{samples}", COLUMNS, rows, NOTE)


def _row(result: Result, ours: Result | None) -> tuple[str, ...]:
    cpu = [run.cpu_s_per_sample for run in result.runs if run.cpu_s_per_sample is not None]
    compared = ours is not None and result.entry != OURS
    return (
        _name(result.entry),
        result.entry.decoder,
        "default" if result.workers == DEFAULT_WORKERS else str(result.workers),
        f"{_median_of(result, 'rate'):,.0f}",
        f"{median_ratio(_figures(ours, 'rate'), _figures(result, 'rate')):.2f}×" if ours and compared else "",
        f"{_median_of(result, 'first_batch_s') * 1e3:,.0f} ms",
        f"{_median_of(result, 'peak_memory_bytes') / 2**20:,.0f} MiB",
        f"{median(cpu) * 1e3:.2f} ms" if cpu else "",
    )


def _missing_row(result: Result) -> tuple[str, ...]:
    return _name(result.entry), result.entry.decoder, "", f"excluded: {result.failure}", "", "", "", ""


def _name(entry: Entry) -> str:
    package = PACKAGES.get(entry.loader)
    version = f" {pinned()[package]}" if package else ""
    return NAMES[entry.loader] + version + (", packed shards" if entry.packed else "")


def _figures(result: Result, figure: str) -> list[float]:
    return [float(getattr(run, figure)) for run in result.runs]


def _median_of(result: Result, figure: str) -> float:
    return median(_figures(result, figure))
