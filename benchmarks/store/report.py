"""Reports a comparison on the store: a line for each target, and a table of all loaders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.peers.compare import DEFAULT_WORKERS, Result
from benchmarks.peers.environment import pinned
from benchmarks.result import Line, Table, median_ratio
from benchmarks.store.compare import LATENCY_S, OURS, PLAIN
from benchmarks.store.objects import SAMPLE_BYTES

CEILING_TARGET = 0.85
"""Smallest accepted ratio of Penstock's rate to that of plain reads."""
PEER_TARGET = 2.0
"""Smallest accepted ratio of Penstock's rate to that of a peer."""
COLUMNS = ("loader", "workers", "MB/s", "Penstock ÷ loader", "first batch", "peak memory", "CPU per sample")
NAMES = {"penstock": "Penstock", "plain": "plain ranged reads, data discarded"}


def findings(results: Sequence[Result], mb_s: float) -> Iterator[Line | Table]:
    succeeded = {result.entry: result for result in results if result.failure is None}
    ours = succeeded.get(OURS)
    if ours is not None:
        for entry, result in succeeded.items():
            if entry != OURS:
                yield _line(ours, result)
    rows = [_row(result, ours) for result in sorted(succeeded.values(), key=lambda result: -median(_rates(result)))]
    missing = [
        (_name(result), "", f"excluded: {result.failure}", "", "", "", "") for result in results if result.failure
    ]
    yield Table(
        f"Raw arrays from a store with {LATENCY_S * 1e3:.0f} ms per request", COLUMNS, rows + missing, note(mb_s)
    )


def note(mb_s: float) -> str:
    return (
        f"Samples of {SAMPLE_BYTES >> 10} KiB in shards of 64 MiB, in a store of our own on the same machine. It "
        f"delays every request by {LATENCY_S * 1e3:.0f} ms and sends at most {mb_s:,.0f} MB/s over all connections, so "
        "that the store is the limit and not the cores, which it shares with the loaders. Every loader delivered every "
        "key once and the same values, in batches, without shuffling. Each run is a process of its own, and its rate "
        "is that of the whole run, from making the loader to the last batch. Figures are medians over the rounds, with "
        "the best of 1 to 16 workers (plain reads: 16 or 32 requests in flight), which was found in a round before "
        "them. litdata reads chunks of its own format with the same bytes, and downloads them to memory. What is made "
        "once for a dataset (our index, litdata's chunks) is not timed."
    )


def _line(ours: Result, other: Result) -> Line:
    ceiling = other.entry == PLAIN
    what = "plain ranged reads" if ceiling else _name(other)
    return Line(
        f"store with {LATENCY_S * 1e3:.0f} ms per request, against {what}",
        f"{median(_rates(ours)):,.0f} MB/s",
        f"{f'{other.workers} reads in flight: ' if ceiling else ''}{median(_rates(other)):,.0f} MB/s",
        median_ratio(_rates(ours), _rates(other)),
        CEILING_TARGET if ceiling else PEER_TARGET,
        "at least",
    )


def _row(result: Result, ours: Result | None) -> tuple[str, ...]:
    runs = result.runs
    cpu = [run.cpu_s_per_sample for run in runs if run.cpu_s_per_sample is not None]
    return (
        _name(result),
        "default" if result.workers == DEFAULT_WORKERS else str(result.workers),
        f"{median(_rates(result)):,.0f}",
        f"{median_ratio(_rates(ours), _rates(result)):.2f}×" if ours and result.entry != OURS else "",
        f"{median(run.first_batch_s for run in runs) * 1e3:,.0f} ms",
        f"{median(run.peak_memory_bytes for run in runs) / 2**20:,.0f} MiB",
        f"{median(cpu) * 1e3:.2f} ms" if cpu else "",
    )


def _name(result: Result) -> str:
    loader = result.entry.loader
    return NAMES.get(loader) or f"{loader} {pinned()[loader]}"


def _rates(result: Result) -> list[float]:
    """Return the rate of every run in MB/s."""
    return [run.rate * SAMPLE_BYTES / 1e6 for run in result.runs]
