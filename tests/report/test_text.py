import io

from rich.console import Console

from penstock.report.text import table


def shown(grid, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width).print(grid)
    return stream.getvalue()


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
