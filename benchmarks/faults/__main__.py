"""`python -m benchmarks.faults`: diagnose trainings with each fault, and compare them with trainings without it."""

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
    "Each fault is injected into a training with a real loader, in two severities and with several seeds. The run is "
    "recorded as `penstock run` does it, and diagnosed. The predicted gain is that of the first finding. The measured "
    "gain is that over the same training without the fault, which runs before it and after it, each in a process of "
    "its own. A predicted gain is off if it differs from the measured one by more than a fifth of the latter."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME", help="run only these faults"
    )
    parser.add_argument("--severity", choices=SEVERITIES, help="run only this severity")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="the others follow it")
    parser.add_argument("--again", action="store_true", help="run nothing: diagnose the recordings in the folder")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each training")
    parser.add_argument("--folder", type=Path, help="keep data and recordings here; on a disk, not in memory")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    options = parser.parse_args()
    severities = (options.severity,) if options.severity else SEVERITIES
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        verdicts: list[Verdict] = []
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        names = options.only if options.again else _available(options.only, folder)
        for verdict in run(names, seeds, severities, folder, options.steps, options.again):
            verdicts.append(verdict)
            print(_summary(verdict), file=sys.stderr, flush=True)
    found = {"faults": _findings(verdicts)}
    if options.json:
        print(json.dumps([asdict(verdict) | {"right": verdict.right} for verdict in verdicts], indent=2))
    else:
        show(found)
    if options.write:
        write(found)
    sys.exit(0 if all(line.reached for line in lines_of(found)) else 1)


def _available(names: Sequence[str], folder: Path) -> list[str]:
    """Return the faults that this machine can have; print the others with the reason."""
    missing = {name: FAULTS[name].missing(folder) for name in names}
    for name, reason in missing.items():
        if reason:
            print(f"{name} left out: {reason}", file=sys.stderr)
    return [name for name in names if missing[name] is None]


def _summary(verdict: Verdict) -> str:
    mark = "✓" if verdict.right else "✗"
    gains = f"gain {_percent(verdict.predicted)} predicted, {_percent(verdict.actual)} measured"
    case = f"{verdict.fault} {verdict.severity} {verdict.seed}"
    return f"{mark} {case}: {verdict.named or verdict.verdict}, {gains}, {verdict.seconds:.0f} s"


def _findings(verdicts: Sequence[Verdict]) -> list[Finding]:
    rows = [
        (name, FAULTS[name].expect or "nothing", ", ".join(f"{rule} ×{count}" for rule, count in counts.most_common()))
        for name, counts in matrix(verdicts).items()
    ]
    named = Table("Injected faults and first findings", ("fault", "expected", "first finding"), rows, NOTE)
    off = [verdict for verdict in verdicts if verdict.error is not None and abs(verdict.error) > GAIN_WITHIN]
    cells = [_gain_cells(verdict) for verdict in off]
    gains = Table("Predicted gains that are off", ("case", "predicted", "measured"), cells, NOTE)
    return [*lines(verdicts), named, gains]


def _gain_cells(verdict: Verdict) -> tuple[str, str, str]:
    case = f"{verdict.fault} {verdict.severity} {verdict.seed}"
    return case, _percent(verdict.predicted), _percent(verdict.actual)


def _percent(gain: float | None) -> str:
    return "–" if gain is None else f"{gain:+.0%}"


if __name__ == "__main__":
    main()
