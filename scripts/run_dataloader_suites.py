"""Run the tests of torch's and torchdata's DataLoader with penstock.DataLoader in its place.

usage: python scripts/run_dataloader_suites.py SUITES [--baseline] [--only TEXT] [--results FILE] [--check]

SUITES is a folder with test files that fit the installed versions; they are not part of this repository:

    torch/test_dataloader.py              from test/ of github.com/pytorch/pytorch
    torchdata/test_*.py                   from test/stateful_dataloader/ of github.com/meta-pytorch/data

Before a file is imported, `torch.utils.data.DataLoader` and `torchdata.stateful_dataloader.StatefulDataLoader` are
replaced, also in processes that a test spawns; nothing in the file is edited. Each test runs in a process group of its
own with a time limit, forked from a process that has imported its file. The table says how many tests passed, and how
many made a loader. `--baseline` runs the same tests with the original classes. Results are kept in the file that
--results names, one line per test; tests that are in it are not run again.

`--check` compares both kinds of results with the table of failing tests in docs/dataloader.md: it is an error if a test
that passes with the original class fails and is not listed, or is listed and passes. The tests need the packages
expecttest and parameterized; some also dill, datasets or psutil.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import sys
import tempfile
import time
import unittest
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "dataloader.md"
LISTED = re.compile(r"^\| `([\w.]+/[\w.]+)` \|", flags=re.MULTILINE)
"""A row of the table of failing tests: its first column is the file's folder and the test's id."""
SITE = """import sys
if "resource_tracker" not in " ".join(sys.orig_argv):
    sys.path.append({folder!r})
    from {module} import replace_loaders
    replace_loaders({variant!r})
"""
"""The sitecustomize module of processes that tests start."""
TIME_LIMIT_S = 240
OWN, BASELINE = "penstock", "original"
LAST_CHARACTERS = 4000
"""Length of the end of a test's output that is kept."""

Result = dict[str, Any]


def main() -> int:
    """Run what is not in the results yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", type=Path, metavar="SUITES")
    parser.add_argument("--baseline", action="store_true", help="use the original classes")
    parser.add_argument("--only", default="", metavar="TEXT", help="run the tests whose id contains TEXT")
    parser.add_argument("--results", type=Path, default=Path("dataloader-suites.jsonl"), metavar="FILE")
    parser.add_argument("--check", action="store_true", help="run no test; compare the results with docs/dataloader.md")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="tests that run side by side")
    parser.add_argument("--limit", type=float, default=TIME_LIMIT_S, metavar="SECONDS", help="for each test")
    arguments = parser.parse_args()
    results = _read_results(arguments.results)
    if not arguments.check:
        variant = BASELINE if arguments.baseline else OWN
        for file in _test_files(arguments.suites):
            _run_file(file, variant, results, arguments)
    _print_table(results)
    return _check(results) if arguments.check else 0


def _test_files(suites: Path) -> list[Path]:
    files = sorted(suites.glob("torch*/test_*.py"))
    if not files:
        sys.exit(f"{suites} has no test file; --help says where they come from")
    return files


def _read_results(path: Path) -> dict[tuple[str, str], Result]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {(each["variant"], each["test"]): each for each in map(json.loads, lines)}


def _run_file(file: Path, variant: str, results: dict[tuple[str, str], Result], arguments: argparse.Namespace) -> None:
    """Fork a process that imports the file and runs its tests one by one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w", buffering=1) as pipe:
            skip = {test for each_variant, test in results if each_variant == variant}
            with tempfile.TemporaryDirectory() as site:
                module = _import_with(file, variant, Path(site))
                for result in _results_of_file(file, module, variant, skip, arguments):
                    pipe.write(json.dumps(result) + "\n")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe, arguments.results.open("a") as log:
        for line in pipe:
            result = json.loads(line)
            results[variant, result["test"]] = result
            log.write(line)
            log.flush()
            print(f"{result['outcome']:8} {result['seconds']:6.1f} s  {result['test']}", flush=True)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{file} could not be run")


def _results_of_file(
    file: Path, module: ModuleType, variant: str, skip: set[str], arguments: argparse.Namespace
) -> Iterator[Result]:
    named = [(f"{file.parent.name}/{test.id().removeprefix('test_')}", test) for test in _tests(module)]
    waiting = [(name, test) for name, test in named if arguments.only in name and name not in skip]
    running: list[_RunningTest] = []
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            running.append(_RunningTest(*waiting.pop(0), arguments.limit))
        for each in list(running):
            if (result := each.poll()) is not None:
                running.remove(each)
                yield {"variant": variant, **result}
        time.sleep(0.02)


def _import_with(file: Path, variant: str, site: Path) -> ModuleType:
    """Import the test file after `replace_loaders`, which the processes that its tests start call as well.

    They do so by a sitecustomize module in the folder `site`.
    """
    script = Path(__file__)
    (site / "sitecustomize.py").write_text(SITE.format(folder=str(script.parent), module=script.stem, variant=variant))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    replace_loaders(variant)
    sys.path.insert(0, str(file.parent))
    return __import__(file.stem)


def replace_loaders(variant: str) -> None:
    """Put penstock.DataLoader in the place of the original classes, if the variant is ours."""
    import torch.utils.data
    import torchdata.stateful_dataloader
    from torchdata.stateful_dataloader import stateful_dataloader

    originals = (torch.utils.data.DataLoader, torchdata.stateful_dataloader.StatefulDataLoader)
    if variant == OWN:
        from penstock import DataLoader

        for module in (torch.utils.data, torch.utils.data.dataloader):
            module.DataLoader = DataLoader  # type: ignore[attr-defined, misc]
        for module in (torchdata.stateful_dataloader, stateful_dataloader):
            module.StatefulDataLoader = DataLoader
        originals = (*originals, DataLoader)
    for each in originals:
        _note_construction(each)


def _note_construction(loader: Any) -> None:
    """Let a constructor create the file that the environment names, also in processes that a test forks."""
    initialize = loader.__init__

    def __init__(self: Any, *args: Any, **settings: Any) -> None:
        if path := os.environ.get("DATALOADER_SUITES_TOUCH"):
            Path(path).touch()
        initialize(self, *args, **settings)

    loader.__init__ = __init__


def _tests(module: ModuleType) -> Iterator[unittest.TestCase]:
    """Yield the tests of the module's own classes; its `load_tests` wants to be run as a script."""
    for each in list(vars(module).values()):
        if isinstance(each, type) and issubclass(each, unittest.TestCase) and each.__module__ == module.__name__:
            suite: Any = unittest.defaultTestLoader.loadTestsFromTestCase(each)
            yield from suite


class _RunningTest:
    """A test in a forked process group of its own."""

    def __init__(self, name: str, test: unittest.TestCase, limit_s: float) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        self._report, self._touched, self._output = (Path(self._folder.name, each) for each in ("r", "t", "o"))
        self._started, self._limit_s = time.monotonic(), limit_s
        self._timed_out = False
        self._process = os.fork()
        if self._process == 0:
            os.setpgid(0, 0)
            os.environ["DATALOADER_SUITES_TOUCH"] = str(self._touched)
            _run_test(test, self._report, self._output)
            os._exit(0)

    def poll(self) -> Result | None:
        """Return the result when the test has ended; end its process group after the time limit."""
        if time.monotonic() - self._started > self._limit_s and not self._timed_out:
            self._timed_out = True
            _kill_group(self._process)
        if os.waitpid(self._process, os.WNOHANG)[0] == 0:
            return None
        _kill_group(self._process)  # what the test has left running
        outcome, reason = "timeout" if self._timed_out else "crashed", ""
        if self._report.exists():
            outcome, reason = json.loads(self._report.read_text())
        elif self._output.exists():
            reason = self._output.read_text(errors="replace")[-LAST_CHARACTERS:]
        seconds = round(time.monotonic() - self._started, 1)
        result = {"outcome": outcome, "loader": self._touched.exists(), "seconds": seconds, "reason": reason}
        self._folder.cleanup()
        return {"test": self.name, **result}


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _run_test(test: unittest.TestCase, report: Path, output: Path) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(unittest.TestSuite([test]))
    failures = [*result.failures, *result.errors]
    if failures or result.unexpectedSuccesses:
        outcome = ("failed", "\n".join(text for _, text in failures)[-LAST_CHARACTERS:])
    elif result.skipped:
        outcome = ("skipped", result.skipped[0][1])
    else:
        outcome = ("passed", "")
    report.write_text(json.dumps(outcome))


def _print_table(results: dict[tuple[str, str], Result]) -> None:
    """Print one row per file and class, and the share of comparable tests that pass."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (variant, test), result in sorted(results.items()):
        count = counts[f"{test.rpartition('.')[0].rpartition('.')[0]} {variant}"]
        count[result["outcome"]] += 1
        count["loader"] += result["loader"]
    outcomes = ("passed", "failed", "crashed", "timeout", "skipped", "loader")
    print(f"\n{'':44}" + "".join(f"{each:>9}" for each in outcomes))
    for name, count in sorted(counts.items()):
        print(f"{name:44}" + "".join(f"{count[each]:9}" for each in outcomes))
    comparable = _comparable(results)
    passing = [test for test in comparable if results[OWN, test]["outcome"] == "passed"]
    if comparable:
        share = 100 * len(passing) / len(comparable)
        print(f"\nOf {len(comparable)} tests that make a loader and pass with the original class, ", end="")
        print(f"{len(passing)} pass: {share:.1f}%")


def _comparable(results: dict[tuple[str, str], Result]) -> list[str]:
    """Return the tests that make a loader and pass with the original class, of those that ran with both."""
    tests = [test for variant, test in results if variant == OWN and (BASELINE, test) in results]
    return [
        test for test in tests if results[BASELINE, test]["outcome"] == "passed" and results[BASELINE, test]["loader"]
    ]


def _check(results: dict[tuple[str, str], Result]) -> int:
    """Compare with the documentation's table; return the exit code."""
    listed = LISTED.findall(PAGE.read_text())
    failing = {test for test in _comparable(results) if results[OWN, test]["outcome"] != "passed"}
    ran = {test for variant, test in results if variant == OWN}
    problems = [f"fails and is not listed: {test}" for test in sorted(failing - set(listed))]
    problems += [f"is listed and does not fail: {test}" for test in listed if test in ran and test not in failing]
    problems += [f"is listed and was not run: {test}" for test in listed if test not in ran]
    print("\n".join(problems) or f"docs/dataloader.md lists all {len(failing)} failing tests, and no other")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
