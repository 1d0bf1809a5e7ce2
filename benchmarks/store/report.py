"""What the race says: a line for each figure to reach, and a table with everybody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.peers.compare import DEFAULT, Result
from benchmarks.peers.environment import pinned
from benchmarks.result import Line, Table, median_ratio
from benchmarks.store.compare import LATENCY_S, OURS, PLAIN
from benchmarks.store.objects import SAMPLE_BYTES

OF_CEILING = 0.85
OF_PEERS = 2.0
COLUMNS = ("contestant", "workers", "MB/s", "Penstock is", "first batch", "peak memory", "CPU per sample")
NAMES = {"penstock": "Penstock", "plain": "plain ranged reads, nothing done with them"}


def findings(results: Sequence[Result], mb_s: float) -> Iterator[Line | Table]:
    arrived = {result.entry: result for result in results if result.failure is None}
    ours = arrived.get(OURS)
    if ours is not None:
        for entry, result in arrived.items():
            if entry != OURS:
                yield _line(ours, result)
    rows = [_row(result, ours) for result in sorted(arrived.values(), key=lambda result: -median(_rates(result)))]
    missing = [(_name(result), "", f"out: {result.failure}", "", "", "", "") for result in results if result.failure]
    yield Table(f"Raw arrays from a store: {LATENCY_S * 1e3:.0f} ms a request", COLUMNS, rows + missing, note(mb_s))


def note(mb_s: float) -> str:
    return (
        f"Samples of {SAMPLE_BYTES >> 10} KiB in shards of 64 MiB, in a store of our own on the same machine. It lets "
        f"every request wait {LATENCY_S * 1e3:.0f} ms and gives {mb_s:,.0f} MB/s at most to all of them together, so "
        "that it is the limit and not the cores, which all share. Every contestant delivered every key once and the "
        "same values, in batches, without shuffling. Each run is a process of its own, and its rate that of all of it, "
        "from making the loader to the last batch; figures are medians over the rounds, at the best of 1 to 16 "
        "workers (plain reads: 16 or 32 requests in flight), which a round before them found. litdata reads chunks "
        "of its own format with the same bytes, and downloads them to memory. What is "
        "made once for a dataset (our index, litdata's chunks) is not timed."
    )


def _line(ours: Result, other: Result) -> Line:
    ceiling = other.entry == PLAIN
    what = "the store's own ceiling" if ceiling else _name(other)
    return Line(
        f"store with {LATENCY_S * 1e3:.0f} ms a request, against {what}",
        f"{median(_rates(ours)):,.0f} MB/s",
        f"{f'{other.workers} reads in flight: ' if ceiling else ''}{median(_rates(other)):,.0f} MB/s",
        median_ratio(_rates(ours), _rates(other)),
        OF_CEILING if ceiling else OF_PEERS,
        "at least",
    )


def _row(result: Result, ours: Result | None) -> tuple[str, ...]:
    runs = result.runs
    cpu = [run.cpu_s_per_sample for run in runs if run.cpu_s_per_sample is not None]
    return (
        _name(result),
        "default" if result.workers == DEFAULT else str(result.workers),
        f"{median(_rates(result)):,.0f}",
        f"{median_ratio(_rates(ours), _rates(result)):.2f}×" if ours and result.entry != OURS else "",
        f"{median(run.first_batch_s for run in runs) * 1e3:,.0f} ms",
        f"{median(run.peak_memory_bytes for run in runs) / 2**20:,.0f} MiB",
        f"{median(cpu) * 1e3:.2f} ms" if cpu else "",
    )


def _name(result: Result) -> str:
    who = result.entry.loader
    return NAMES.get(who) or f"{who} {pinned()[who]}"


def _rates(result: Result) -> list[float]:
    """MB/s."""
    return [run.rate * SAMPLE_BYTES / 1e6 for run in result.runs]
