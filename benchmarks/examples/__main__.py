"""`make examples`: the worked examples before and after, and with each habit of their field report put back alone.

At real size where there is a GPU, some six minutes for each example; else at toy size.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.examples.one import EXAMPLES
from benchmarks.examples.report import findings
from benchmarks.examples.runs import Plan, measure

ROUNDS = 3
TOY_LIMITS = ("--toy", "--warm-up", "6", "--iterations", "20", "--seconds", "3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=EXAMPLES, metavar="NAME", help="these only")
    parser.add_argument("--toy", action="store_true", help="at toy size, on a GPU too")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings than the configs'")
    parser.add_argument("--data", type=Path, help="keep the made-up data in this folder")
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the sections into docs/benchmarks.md")
    asked = parser.parse_args()
    toy = asked.toy or not torch.cuda.is_available()
    command = shlex.join(["python", "-m", "benchmarks.examples", *sys.argv[1:]])
    found: dict[str, list[Finding]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-examples-") as scratch:
        for name in asked.only:
            plan = Plan(
                example=name,
                habits=importlib.import_module(f"examples.{name}.train").HABITS,
                data=(asked.data or Path(scratch)) / f"{name}{'-toy' if toy else ''}",
                arguments=(*(TOY_LIMITS if toy else ()), "--set", *asked.set),
                rounds=asked.rounds,
            )
            found[f"examples-{name}{'-toy' if toy else ''}"] = list(findings(measure(plan), command))
    if asked.json:
        print(as_json(found))
    else:
        show(found)
    if asked.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


if __name__ == "__main__":
    main()
