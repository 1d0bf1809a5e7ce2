"""Run `tests/gpu` and return its outcome as a table, with the date and the versions of the packages."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.result import Table

FOLDER = "tests/gpu"
OUTCOMES = ("passed", "failed", "skipped")
PACKAGES = ("torch", "triton", "torchvision", "torchcodec", "nvidia-nvimgcodec-cu13", "numpy")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run of pytest."""

    by_file: dict[str, Counter[str]]
    """Number of tests with each of OUTCOMES, by test file."""
    failed: tuple[str, ...]
    """File and name of each failed test."""
    complete: bool
    """Whether pytest ran to its end without a failure."""

    def table(self) -> Table:
        rows = [(name, _describe(counts)) for name, counts in sorted(self.by_file.items())]
        rows += [(name, "failed") for name in self.failed]
        note = f"`make test-gpu`, {date.today().isoformat()}: {versions()}."
        if not self.complete and not self.failed:
            note += " pytest did not run to its end."
        return Table(FOLDER, ("what", "outcome"), rows, note)


def run_tests(folder: str = FOLDER, options: Sequence[str] = ()) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        junit_file = Path(scratch) / "outcome.xml"
        command = [sys.executable, "-m", "pytest", folder, f"--junitxml={junit_file}", *options]
        code = subprocess.run(command, check=False).returncode
        return read_outcome(junit_file.read_text() if junit_file.exists() else "", complete=code == 0)


def read_outcome(junit: str, *, complete: bool) -> Outcome:
    """Read the file that pytest writes with --junitxml; an empty string means that it wrote none."""
    by_file: dict[str, Counter[str]] = {}
    failed = []
    for case in ElementTree.fromstring(junit).iter("testcase") if junit else ():
        file = (case.get("classname") or case.get("name", "")).rpartition(".")[2]  # a file left out has no class
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        by_file.setdefault(file, Counter())[outcome] += 1
        if outcome == "failed":
            failed.append(f"{file}: {case.get('name', '')}")
    return Outcome(by_file, tuple(failed), complete)


def versions() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def _describe(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
