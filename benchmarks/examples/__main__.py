"""`make examples`: time the examples by default, with all habits of their field report, and with each habit alone.

With a GPU they run at real size, which takes about four minutes for each example, or for all three with --short.
Without a GPU they run at toy size.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.examples.report import findings
from benchmarks.examples.runs import RunPlan, measure
from benchmarks.examples.single_run import EXAMPLES
from penstock.errors import PenstockError


@dataclass(frozen=True)
class Extent:
    """How many runs are made of an example, and how long they are."""

    rounds: int
    habit_rounds: int
    """Rounds of the runs with one habit alone."""
    timeout_s: float
    arguments: tuple[str, ...]
    """Arguments of every run: its size and limits."""
    data: dict[str, tuple[str, ...]]
    """Settings by example that shorten the generation of its data."""
    not_alone: frozenset[str] = frozenset()
    """Habits that make no difference alone, so they are not measured alone."""


FULL = Extent(3, 2, 300.0, (), {})
TOY = Extent(
    3,
    2,
    300.0,
    ("--toy", "--warm-up", "6", "--warm-up-s", "1", "--iterations", "20", "--seconds", "3"),
    {},
    # on a CPU nothing is copied or compiled, and all is in 32 bits
    not_alone=frozenset({"copies", "precision", "eager"}),
)
SHORT = Extent(
    1,
    0,
    75.0,
    ("--iterations", "20", "--seconds", "5"),
    {"distill": ("distinct=96",), "segment": ("distinct=48",)},
)


def main() -> None:
    options = _parse_arguments()
    toy = options.toy or not torch.cuda.is_available()
    extent = SHORT if options.short else TOY if toy else FULL
    if options.short and toy:
        sys.exit("--short needs a GPU at real size: toys are short anyway")
    command = shlex.join(["python", "-m", "benchmarks.examples", *sys.argv[1:]])
    found: dict[str, list[Finding]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-examples-") as scratch:
        for name in options.only:
            plan = _plan(name, options, extent, (options.data or Path(scratch)) / f"{name}{'-toy' if toy else ''}")
            try:
                sections: dict[str, list[Finding]] = {
                    f"examples-{name}{'-toy' if toy else ''}": list(findings(measure(plan), command))
                }
            except PenstockError as error:  # the other examples still run
                print(error, file=sys.stderr, flush=True)
                continue
            found |= sections
            if not options.json:
                show(sections)
            if options.write:
                write(sections)
    if options.json:
        print(as_json(found))
    sys.exit(0 if len(found) == len(options.only) and all(line.reached for line in lines_of(found)) else 1)


def _plan(name: str, options: argparse.Namespace, extent: Extent, data: Path) -> RunPlan:
    habits = importlib.import_module(f"examples.{name}.train").HABITS
    return RunPlan(
        example=name,
        habits=habits,
        measured_alone=tuple(habit for habit in habits if habit not in extent.not_alone),
        data=data,
        arguments=(*extent.arguments, "--set", *extent.data.get(name, ()), *options.set),
        rounds=options.rounds or extent.rounds,
        habit_rounds=extent.habit_rounds if options.ablated is None else options.ablated,
        timeout_s=extent.timeout_s,
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=EXAMPLES, metavar="NAME", help="run only these")
    parser.add_argument("--toy", action="store_true", help="use toy size even with a GPU")
    parser.add_argument("--short", action="store_true", help="on a GPU: one round, no runs with one habit, less data")
    parser.add_argument("--rounds", type=int, help="rounds of runs by default and with all habits")
    parser.add_argument("--ablated", type=int, help="rounds of runs with one habit alone; 0: none")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings that replace those of the configs"
    )
    parser.add_argument("--data", type=Path, help="keep the synthetic data in this folder")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the sections into docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
