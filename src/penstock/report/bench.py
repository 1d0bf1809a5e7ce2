"""A race of loaders as a table, and what it means in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from penstock.core.format import format_bytes, format_count, format_duration, format_number
from penstock.report.text import table

BATCHES_PER_WORKER = 10
"""A worker's first batches are made while the first of all is waited for: with fewer in all, they make up the rate."""

ROUNDS_TO_JUDGE = 3
"""Equal loaders have rounds that do not overlap by chance: of three each once in ten times, of two once in three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One line of the table: the medians of a contestant's rounds."""

    contestant: str
    workers: int
    batches: int
    """Per round."""
    rate: float
    """Samples per second, of the median round; `slowest_rate` and `fastest_rate` of the others."""
    slowest_rate: float
    fastest_rate: float
    first_batch_s: float
    peak_memory_bytes: int
    cpu_s_per_sample: float | None
    rounds: int


def bench_table(title: str, racers: Sequence[BenchRow], rival: BenchRow) -> Table:
    """The racers in the order given; ratios are against the rival's rate."""
    numbers = ("workers", "samples/s", "ratio", "first batch", "memory", "CPU/sample")
    rows = [
        (
            racer.contestant,
            str(racer.workers),
            format_number(racer.rate),
            f"{racer.rate / rival.rate:.2f}×",
            format_duration(racer.first_batch_s),
            format_bytes(racer.peak_memory_bytes),
            "unknown" if racer.cpu_s_per_sample is None else f"{racer.cpu_s_per_sample * 1e3:.3g} ms",
        )
        for racer in racers
    ]
    return table(title, ("contestant", *numbers), rows, right=numbers)


def bench_meaning(ours: BenchRow, rival: BenchRow) -> str:
    """What may be said of the difference: something only where no round of the one reaches a round of the other."""
    ratio = ours.rate / rival.rate
    best = f"{rival.contestant} at its best ({format_count(rival.workers, 'worker')})"
    if any(racer.batches < BATCHES_PER_WORKER * racer.workers for racer in (ours, rival)):
        return f"Too short to judge: {ours.batches} batches a run; take more shards or smaller batches."
    if min(ours.rounds, rival.rounds) < ROUNDS_TO_JUDGE:
        few = format_count(min(ours.rounds, rival.rounds), "round")
        return f"{ours.contestant} ran at {ratio:.2f}× {best}, but {few} can differ by chance: run {ROUNDS_TO_JUDGE}."
    if ours.slowest_rate > rival.fastest_rate:
        return f"{ours.contestant} feeds {ratio:.2f}× as many samples a second as {best}{_cpu(ours, rival)}."
    if ours.fastest_rate < rival.slowest_rate:
        return f"{ours.contestant} is slower on these shards: {ratio:.2f}× {best}{_cpu(ours, rival)}."
    return f"No clear difference: the rounds of {ours.contestant} overlap with those of {best}."


def _cpu(ours: BenchRow, rival: BenchRow) -> str:
    if not ours.cpu_s_per_sample or not rival.cpu_s_per_sample:
        return ""
    return f", with {ours.cpu_s_per_sample / rival.cpu_s_per_sample:.2f}× the CPU time per sample"
