"""scripts/run_dataloader_suites.py runs the tests of a folder with our loader, and compares the results with a page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_dataloader_suites.py"
SUITE = """
import multiprocessing
import os
import signal
import unittest

from torch.utils.data import DataLoader


def class_of_loader(results):
    import torch.utils.data

    results.put(torch.utils.data.DataLoader.__module__)


class TestSmall(unittest.TestCase):
    def test_fails_with_ours(self):
        self.assertEqual(type(DataLoader([1])).__module__, "torch.utils.data.dataloader")

    def test_makes_a_loader(self):
        self.assertEqual(len(list(DataLoader([1, 2]))), 2)

    def test_makes_none(self):
        print("nothing")

    @unittest.skip("not now")
    def test_skipped(self):
        DataLoader([1])

    def test_crashes(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def test_hangs(self):
        multiprocessing.Event().wait()

    def test_spawned_process_has_the_same_class(self):
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        process = context.Process(target=class_of_loader, args=(results,))
        process.start()
        self.assertEqual(results.get(timeout=100), DataLoader.__module__)
        process.join()
"""


def _run(suites, results, *options):
    command = [sys.executable, SCRIPT, suites, "--results", results, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_each_test_runs_alone_with_our_loader_or_the_original_and_the_page_must_list_the_difference(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "test_small.py").write_text(SUITE)
    results = tmp_path / "results.jsonl"
    for options in ([], ["--baseline"]):
        done = _run(tmp_path, results, "--limit", "60", "--jobs", "2", *options)
        assert done.returncode == 0, done.stderr
    found = {}
    for line in results.read_text().splitlines():
        result = json.loads(line)
        found[result["variant"], result["test"].rpartition(".")[2]] = (result["outcome"], result["loader"])
    expected = {
        "test_makes_a_loader": ("passed", True),
        "test_makes_none": ("passed", False),
        "test_skipped": ("skipped", False),
        "test_crashes": ("crashed", False),
        "test_hangs": ("timeout", False),
        "test_spawned_process_has_the_same_class": ("passed", False),
    }
    for variant, outcome in (("penstock", "failed"), ("original", "passed")):
        of_variant = {test: outcome for (each, test), outcome in found.items() if each == variant}
        assert of_variant == {**expected, "test_fails_with_ours": (outcome, True)}
    assert "Of 2 tests that make a loader and pass with the original class, 1 pass: 50.0%" in done.stdout
    checked = _run(tmp_path, results, "--check")
    assert checked.returncode == 1
    assert "fails and is not listed: torch/small.TestSmall.test_fails_with_ours" in checked.stdout


def test_a_folder_without_tests_is_refused(tmp_path):
    done = _run(tmp_path, tmp_path / "results.jsonl")
    assert done.returncode == 1
    assert "has no test file" in done.stderr
