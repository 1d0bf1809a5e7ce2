"""The outcome of `tests/gpu`, to be written down with the day and the versions that it was found with."""

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
KINDS = ("passed", "failed", "skipped")
PACKAGES = ("torch", "triton", "torchvision", "torchcodec", "nvidia-nvimgcodec-cu13", "numpy")


@dataclass(frozen=True)
class Outcome:
    by_file: dict[str, Counter[str]]
    """How many of each of KINDS."""
    failed: tuple[str, ...]
    """By name."""
    complete: bool
    """Whether pytest came to its end, and found nothing wrong."""

    def table(self) -> Table:
        rows = [(name, _words(counts)) for name, counts in sorted(self.by_file.items())]
        rows += [(name, "failed") for name in self.failed]
        note = f"`make test-gpu`, {date.today().isoformat()}: {versions()}."
        if not self.complete and not self.failed:
            note += " It did not come to its end."
        return Table(FOLDER, ("what", "outcome"), rows, note)


def run_tests(folder: str = FOLDER, options: Sequence[str] = ()) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / "outcome.xml"
        command = [sys.executable, "-m", "pytest", folder, f"--junitxml={written}", *options]
        code = subprocess.run(command, check=False).returncode
        return read_outcome(written.read_text() if written.exists() else "", complete=code == 0)


def read_outcome(junit: str, *, complete: bool) -> Outcome:
    """From what pytest writes with --junitxml."""
    by_file: dict[str, Counter[str]] = {}
    failed = []
    for case in ElementTree.fromstring(junit).iter("testcase") if junit else ():
        name = (case.get("classname") or case.get("name", "")).rpartition(".")[2]  # a file left out has no class
        found = {child.tag for child in case}
        kind = "failed" if found & {"failure", "error"} else "skipped" if "skipped" in found else "passed"
        by_file.setdefault(name, Counter())[kind] += 1
        if kind == "failed":
            failed.append(f"{name}: {case.get('name', '')}")
    return Outcome(by_file, tuple(failed), complete)


def versions() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
