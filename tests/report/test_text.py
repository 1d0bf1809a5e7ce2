import io

import pytest
from rich.console import Console

from penstock.report.text import human_duration, human_rate, table


def shown(grid, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width).print(grid)
    return stream.getvalue()


def test_rates_are_sizes_a_second():
    assert human_rate(2_380_000_000) == "2.38 GB/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.5e-6, "3.5 µs"), (0.012, "12 ms"), (5.4, "5.4 s"), (90, "1.5 min"), (7200, "2 h"), (200_000, "2.31 d")],
)
def test_durations_take_the_unit_that_reads_well(seconds, text):
    assert human_duration(seconds) == text


def test_names_from_users_are_shown_not_obeyed():
    text = shown(table("[red]t[/]", ("name",), [("[bold]a[/bold]",), ("b\x1b[31m",)]))
    assert "[red]t[/]" in text
    assert "[bold]a[/bold]" in text
    assert "b\\x1b[31m" in text
    assert "\x1b" not in text


def test_long_names_fold_and_nothing_is_cut():
    name = "x" * 200
    text = shown(table("t", ("name", "n"), [(name, "1")], right=("n",)))
    assert text.count("x") == 200
    assert max(len(line) for line in text.splitlines()) <= 80
