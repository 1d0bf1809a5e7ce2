"""Inject each fault, record, diagnose, remove it, and compare what was said with what was true."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.support.faults import FAULTS, STEPS

from benchmarks.document import Finding, lines_of, show, write
from benchmarks.faults.score import GAIN_WITHIN, lines, matrix
from benchmarks.faults.trials import SEVERITIES, run
from benchmarks.faults.verdict import Verdict
from benchmarks.result import Table

NOTE = (
    "Each fault is injected around a real loader, in two severities and with several seeds; the run is recorded as "
    "`penstock run` does it, and diagnosed. The gain that is said is that of removing what was named first; measured "
    "is against the same training without the fault, run before it and after it, each in a process of its own. A gain "
    "is off if it differs from the measured one by more than a fifth of that."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME", help="which faults")
    parser.add_argument("--severity", choices=SEVERITIES, help="one of them only")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="run nothing: judge what the folder holds")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--folder", type=Path, help="keep data and recordings here; on a disk, not in memory")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    asked = parser.parse_args()
    severities = (asked.severity,) if asked.severity else SEVERITIES
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        verdicts: list[Verdict] = []
        seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
        names = asked.only if asked.again else _possible(asked.only, folder)
        for verdict in run(names, seeds, severities, folder, asked.steps, asked.again):
            verdicts.append(verdict)
            print(_said(verdict), file=sys.stderr, flush=True)
    found = {"faults": _findings(verdicts)}
    if asked.json:
        print(json.dumps([asdict(verdict) | {"right": verdict.right} for verdict in verdicts], indent=2))
    else:
        show(found)
    if asked.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


def _possible(names: Sequence[str], folder: Path) -> list[str]:
    """Those that can be had here; the others are named, with the reason."""
    missing = {name: FAULTS[name].missing(folder) for name in names}
    for name, why in missing.items():
        if why:
            print(f"{name} left out: {why}", file=sys.stderr)
    return [name for name in names if missing[name] is None]


def _said(verdict: Verdict) -> str:
    mark = "✓" if verdict.right else "✗"
    gains = f"gain {_percent(verdict.predicted)} said, {_percent(verdict.actual)} measured"
    case = f"{verdict.fault} {verdict.severity} {verdict.seed}"
    return f"{mark} {case}: {verdict.named or verdict.verdict}, {gains}, {verdict.seconds:.0f} s"


def _findings(verdicts: Sequence[Verdict]) -> list[Finding]:
    rows = [
        (name, FAULTS[name].expect or "nothing", ", ".join(f"{rule} ×{count}" for rule, count in counts.most_common()))
        for name, counts in matrix(verdicts).items()
    ]
    named = Table("Injected, and what was named first", ("fault", "to name", "named first"), rows, NOTE)
    off = [verdict for verdict in verdicts if verdict.error is not None and abs(verdict.error) > GAIN_WITHIN]
    gains = Table("Gains that were off", ("case", "said", "measured"), [_gain_cells(verdict) for verdict in off], NOTE)
    return [*lines(verdicts), named, gains]


def _gain_cells(verdict: Verdict) -> tuple[str, str, str]:
    case = f"{verdict.fault} {verdict.severity} {verdict.seed}"
    return case, _percent(verdict.predicted), _percent(verdict.actual)


def _percent(gain: float | None) -> str:
    return "–" if gain is None else f"{gain:+.0%}"


if __name__ == "__main__":
    main()
