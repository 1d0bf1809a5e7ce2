"""The sections that benchmarks write into docs/benchmarks.md."""

import json

import pytest
from benchmarks.document import as_json, write
from benchmarks.result import Line, Table

FAST = Line("a", "2 s", "b: 4 s", 0.5, 0.9, "at most")
SLOW = Line("a | b", "5 s", "b: 4 s", 1.25, 0.9, "at most")


@pytest.fixture
def page(tmp_path, monkeypatch):
    path = tmp_path / "benchmarks.md"
    monkeypatch.setattr("benchmarks.document.DOCUMENT", path)
    return path


def test_sections_that_did_not_run_keep_their_text_and_position(page):
    write({"one": [FAST], "two": [FAST]})
    write({"three": [FAST], "one": [SLOW]})
    text = page.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## one", "## two", "## three"]
    assert text.count("✓") == 2
    assert "| a \\| b | 5 s | b: 4 s | 1.250 | at most 0.9 | ✗ |" in text


def test_tables_follow_the_lines_and_a_shared_note_is_written_once(page):
    tables = [Table(title, ("x", "y"), [("1", "2")], "How it was done.") for title in ("first", "second")]
    write({"one": [*tables, FAST]})
    text = page.read_text()
    assert text.index("| a | 2 s") < text.index("### first") < text.index("### second") < text.index("How it")
    assert text.count("How it was done.") == 1


def test_json_has_whether_the_target_was_reached():
    assert [line["reached"] for line in json.loads(as_json({"one": [FAST, SLOW]}))] == [True, False]
