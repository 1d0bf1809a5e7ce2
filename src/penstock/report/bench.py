"""The result of `penstock bench` as a table, and what it means in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from penstock.core.format import format_bytes, format_count, format_duration, format_number
from penstock.report.text import table

BATCHES_PER_WORKER = 10
"""A worker's first batches are made while the very first batch is awaited; in shorter runs they make up the rate."""

ROUNDS_TO_JUDGE = 3
"""Equally fast loaders have rounds that do not overlap by chance: once in ten times with three rounds of each, once in
three times with two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One line of the table: the medians of a loader's rounds."""

    loader: str
    workers: int
    batches: int
    """Batches per round."""
    rate: float
    """Samples per second of the median round; `slowest_rate` and `fastest_rate` are those of the extreme rounds."""
    slowest_rate: float
    fastest_rate: float
    first_batch_s: float
    peak_memory_bytes: int
    cpu_s_per_sample: float | None
    rounds: int


def bench_table(title: str, rows: Sequence[BenchRow], baseline: BenchRow) -> Table:
    """Return the rows in the given order, with ratios to the baseline's rate."""
    numbers = ("workers", "samples/s", "ratio", "first batch", "memory", "CPU/sample")
    cells = [
        (
            row.loader,
            str(row.workers),
            format_number(row.rate),
            f"{row.rate / baseline.rate:.2f}×",
            format_duration(row.first_batch_s),
            format_bytes(row.peak_memory_bytes),
            "unknown" if row.cpu_s_per_sample is None else f"{row.cpu_s_per_sample * 1e3:.3g} ms",
        )
        for row in rows
    ]
    return table(title, ("loader", *numbers), cells, right=numbers)


def bench_meaning(measured: BenchRow, baseline: BenchRow) -> str:
    """Return a sentence on the difference; there is one only if all rounds of one loader beat all of the other."""
    ratio = measured.rate / baseline.rate
    best = f"{baseline.loader} at its best ({format_count(baseline.workers, 'worker')})"
    if any(row.batches < BATCHES_PER_WORKER * row.workers for row in (measured, baseline)):
        return f"Too short to judge: {measured.batches} batches a run; take more shards or smaller batches."
    if min(measured.rounds, baseline.rounds) < ROUNDS_TO_JUDGE:
        few = format_count(min(measured.rounds, baseline.rounds), "round")
        return f"{measured.loader} ran at {ratio:.2f}× {best}, but {few} can differ by chance: run {ROUNDS_TO_JUDGE}."
    if measured.slowest_rate > baseline.fastest_rate:
        cpu = _cpu_ratio(measured, baseline)
        return f"{measured.loader} delivers {ratio:.2f}× as many samples a second as {best}{cpu}."
    if measured.fastest_rate < baseline.slowest_rate:
        return f"{measured.loader} is slower on these shards: {ratio:.2f}× {best}{_cpu_ratio(measured, baseline)}."
    return f"No clear difference: the rounds of {measured.loader} overlap with those of {best}."


def _cpu_ratio(measured: BenchRow, baseline: BenchRow) -> str:
    if not measured.cpu_s_per_sample or not baseline.cpu_s_per_sample:
        return ""
    return f", with {measured.cpu_s_per_sample / baseline.cpu_s_per_sample:.2f}× the CPU time per sample"
