import io

from rich.console import Console

from penstock.core.hops import Hop
from penstock.core.stats import EngineStats, GpuTimes, LoaderStats
from penstock.report.text import status_line, table


def shown(grid, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width).print(grid)
    return stream.getvalue()


def test_markup_and_escapes_in_names_stay_text():
    text = shown(table("[red]t[/]", ("name",), [("[bold]a[/bold]",), ("b\x1b[31m",)]))
    assert "[red]t[/]" in text
    assert "[bold]a[/bold]" in text
    assert "b\\x1b[31m" in text
    assert "\x1b" not in text


def test_long_names_are_folded_and_not_cut():
    name = "x" * 200
    text = shown(table("t", ("name", "n"), [(name, "1")], right=("n",)))
    assert text.count("x") == 200
    assert max(len(line) for line in text.splitlines()) <= 80


def stats(step_s, gpu_times):
    return LoaderStats(0, 0, 100, 10, 10, 0, Hop("deliver"), Hop("step", step_s), EngineStats(), gpu_times)


def test_a_status_line_has_the_gpu_times_since_the_last_line():
    before, now = stats(10.0, GpuTimes(1.0, 1.0, 4.0)), stats(20.0, GpuTimes(3.0, 1.5, 5.0))
    assert status_line(before, None).endswith("| GPU stalled 40%, waiting for copies 10%")
    assert status_line(now, before).endswith("| GPU stalled 10%, waiting for copies 5%")
    assert "GPU" not in status_line(stats(10.0, None), None)
