from dataclasses import replace

import pytest
from rich.console import Console

from penstock.report.bench import BenchRow, bench_meaning, bench_table

PENSTOCK = BenchRow(
    loader="penstock",
    workers=2,
    batches=100,
    rate=400.0,
    slowest_rate=380.0,
    fastest_rate=420.0,
    first_batch_s=0.25,
    peak_memory_bytes=300_000_000,
    cpu_s_per_sample=0.004,
    rounds=3,
)
PLAIN = replace(
    PENSTOCK, loader="plain", rate=100.0, slowest_rate=90.0, fastest_rate=110.0, workers=1, cpu_s_per_sample=0.016
)


def test_the_table_has_ratios_to_the_baseline():
    console = Console(width=100)
    with console.capture() as capture:
        console.print(bench_table("title", [PENSTOCK, replace(PLAIN, cpu_s_per_sample=None)], PLAIN))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert "penstock 2 400 4.00× 250 ms 300 MB 4 ms" in lines
    assert "plain 1 100 1.00× 250 ms 300 MB unknown" in lines


def test_a_loader_is_faster_if_no_rounds_overlap():
    assert bench_meaning(PENSTOCK, PLAIN) == (
        "penstock delivers 4.00× as many samples a second as plain at its best (1 worker), "
        "with 0.25× the CPU time per sample."
    )


def test_a_loader_is_slower_if_no_rounds_overlap():
    meaning = bench_meaning(replace(PENSTOCK, rate=50.0, slowest_rate=40.0, fastest_rate=60.0), PLAIN)
    assert meaning.startswith("penstock is slower on these shards: 0.50×")


def test_overlapping_rounds_are_no_clear_difference():
    assert bench_meaning(replace(PENSTOCK, slowest_rate=105.0), PLAIN).startswith("No clear difference")


@pytest.mark.parametrize(("rounds", "words"), [(1, "1 round can"), (2, "2 rounds can")])
def test_fewer_than_three_rounds_are_not_judged(rounds, words):
    assert f"4.00× plain at its best (1 worker), but {words} differ by chance" in bench_meaning(
        replace(PENSTOCK, rounds=rounds), replace(PLAIN, rounds=rounds)
    )


def test_runs_with_few_batches_are_not_judged():
    assert bench_meaning(replace(PENSTOCK, batches=19), PLAIN).startswith("Too short to judge: 19 batches")
