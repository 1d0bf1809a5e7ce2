import io

from rich.console import Console

from penstock.plan.batch_size_sweep import Sweep, SweepRow
from penstock.report.sweep import sweep_table


def shown(renderable):
    console = Console(file=io.StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()


def test_a_sweep_shows_rates_the_knee_and_failed_sizes():
    rows = (
        SweepRow(size=4, samples_s=29.8, it_s=7.45, peak_bytes=10_000_000_000),
        SweepRow(size=8, samples_s=29.1, it_s=3.64, peak_bytes=19_000_000_000),
        SweepRow(size=16, failed="out of memory"),
    )
    lines = [line.split() for line in shown(sweep_table(Sweep(rows=rows))).splitlines() if line.strip()]
    assert ["4", "←", "knee", "29.8", "7.45", "10", "GB"] in lines
    assert ["8", "29.1", "3.64", "19", "GB"] in lines
    assert ["16", "out", "of", "memory"] in lines
