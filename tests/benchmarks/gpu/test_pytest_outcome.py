"""The table of the GPU's tests agrees with the outcome that pytest reports."""

from benchmarks.gpu.pytest_outcome import read_outcome, run_tests

TESTS = """
import pytest

def test_good(): pass
def test_wrong(): assert False
@pytest.mark.skip(reason="there is no GPU")
def test_later(): pass
@pytest.fixture
def broken(): raise ValueError
def test_never_run(broken): pass
"""


def test_the_table_counts_the_outcomes_of_each_file_and_names_failed_tests(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_others.py").write_text("def test_good(): pass")
    found = run_tests(str(tmp_path), ["-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", "/dev/null"])
    assert {name: dict(counts) for name, counts in found.by_file.items()} == {
        "test_some": {"passed": 1, "failed": 2, "skipped": 1},
        "test_others": {"passed": 1},
    }
    assert not found.complete
    table = found.table()
    assert ("test_some", "1 passed, 2 failed, 1 skipped") in table.rows
    assert ("test_some: test_wrong", "failed") in table.rows
    assert "torch " in table.note
    assert "end" not in table.note


def test_the_note_reports_a_run_that_did_not_end():
    found = read_outcome("", complete=False)
    assert found.table().rows == []
    assert "did not run to its end" in found.table().note
