"""`make examples`: the worked examples before and after, and with each habit of their field report put back alone.

At real size where there is a GPU, some four minutes for each example, or all three in four minutes with --short; else
at toy size.
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
from benchmarks.examples.runs import Plan, measure
from benchmarks.examples.single_run import EXAMPLES
from penstock.errors import PenstockError


@dataclass(frozen=True)
class Extent:
    """How much is run."""

    rounds: int
    ablated: int
    timeout_s: float
    limits: tuple[str, ...]
    """Of every run."""
    data: dict[str, tuple[str, ...]]
    """Settings of each example that make its data quicker."""
    not_alone: frozenset[str] = frozenset()
    """Habits that change nothing by themselves."""


FULL = Extent(3, 2, 300.0, (), {})
TOY = Extent(
    3,
    2,
    300.0,
    ("--toy", "--warm-up", "6", "--warm-up-s", "1", "--iterations", "20", "--seconds", "3"),
    {},
    not_alone=frozenset({"copies", "precision", "eager"}),  # nothing is copied, all is 32 bits, and not compiled
)
SHORT = Extent(
    1,
    0,
    75.0,
    ("--iterations", "20", "--seconds", "5"),
    {"distill": ("distinct=96",), "segment": ("distinct=48",)},
)


def main() -> None:
    asked = _asked()
    toy = asked.toy or not torch.cuda.is_available()
    extent = SHORT if asked.short else TOY if toy else FULL
    if asked.short and toy:
        sys.exit("--short is for a GPU: elsewhere everything is at toy size")
    command = shlex.join(["python", "-m", "benchmarks.examples", *sys.argv[1:]])
    found: dict[str, list[Finding]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-examples-") as scratch:
        for name in asked.only:
            plan = _plan(name, asked, extent, (asked.data or Path(scratch)) / f"{name}{'-toy' if toy else ''}")
            try:
                here = {f"examples-{name}{'-toy' if toy else ''}": list(findings(measure(plan), command))}
            except PenstockError as error:  # the others are worth their time
                print(error, file=sys.stderr, flush=True)
                continue
            found |= here
            if not asked.json:
                show(here)
            if asked.write:
                write(here)
    if asked.json:
        print(as_json(found))
    sys.exit(0 if len(found) == len(asked.only) and all(line.reached for line in lines_of(found)) else 1)


def _plan(name: str, asked: argparse.Namespace, extent: Extent, data: Path) -> Plan:
    habits = importlib.import_module(f"examples.{name}.train").HABITS
    return Plan(
        example=name,
        habits=habits,
        alone=tuple(habit for habit in habits if habit not in extent.not_alone),
        data=data,
        arguments=(*extent.limits, "--set", *extent.data.get(name, ()), *asked.set),
        rounds=asked.rounds or extent.rounds,
        ablated=extent.ablated if asked.ablated is None else asked.ablated,
        timeout_s=extent.timeout_s,
    )


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=EXAMPLES, metavar="NAME", help="these only")
    parser.add_argument("--toy", action="store_true", help="at toy size, on a GPU too")
    parser.add_argument("--short", action="store_true", help="on a GPU: one round, no habit alone, less data")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--ablated", type=int, help="rounds with one habit alone; 0 to do without")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings than the configs'")
    parser.add_argument("--data", type=Path, help="keep the made-up data in this folder")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the sections into docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
