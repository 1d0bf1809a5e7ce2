"""Each case without its fault, with it, and without it again, each in a fresh process; and what the diagnosis says.

A machine that others use too is faster at one moment than at the next: what lies between two is compared with both.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import harmonic_mean

import msgspec
from tests.support.faults import FAULTS, Case, Fault, Outcome, Severity

from benchmarks.faults.verdict import Verdict
from penstock.diagnose.verdict import diagnose
from penstock.errors import PenstockError
from penstock.recording.reader import load

SEVERITIES: tuple[Severity, ...] = ("mild", "severe")
TIMEOUT_S = 300.0


def run(
    names: Sequence[str],
    seeds: Sequence[int],
    severities: Sequence[Severity],
    folder: Path,
    steps: int,
    again: bool = False,
) -> Iterator[Verdict]:
    """All of them. `again`: those that were recorded before, from the record."""
    for seed in seeds:
        for severity in severities:
            for name in names:
                case = Case(folder=folder, seed=seed, severity=severity, steps=steps)
                if not again or record_of(FAULTS[name], case).exists():
                    yield judge(FAULTS[name], case, recorded if again else run_in_child)


def judge(fault: Fault, case: Case, outcome: Callable[[Fault, Case, int], Outcome]) -> Verdict:
    """Run it between its twins, and ask what was wrong."""
    began = time.perf_counter()
    rates = {twin: outcome(fault, case, twin).steps_per_s for twin in ((0,) if fault.expect is None else (1, 0, 2))}
    said = diagnose(load(record_of(fault, case)))
    first = said.findings[0] if said.findings else None
    return Verdict(
        fault=fault.name,
        severity=case.severity,
        seed=case.seed,
        expect=fault.expect,
        named=first.rule if first else None,
        verdict=said.verdict,
        findings=len(said.findings),
        predicted=first.gain if first else None,
        actual=None if fault.expect is None else harmonic_mean((rates[1], rates[2])) / rates[0] - 1,
        confidence=first.confidence if first else None,
        seconds=time.perf_counter() - began,
    )


def record_of(fault: Fault, case: Case, twin: int = 0) -> Path:
    """Where it is recorded, or one of its twins."""
    return case.folder / f"{fault.name}-{case.severity}-{case.seed}{f'.twin{twin}' if twin else ''}.jsonl"


def recorded(fault: Fault, case: Case, twin: int) -> Outcome:
    """What it took, by its recording."""
    steps = load(record_of(fault, case, twin)).steps
    first, last = steps[0], steps[-1]
    seconds = last.at_s + last.wait_s + last.step_s - first.at_s - first.wait_s
    return Outcome(steps=len(steps), seconds=seconds)


def run_in_child(fault: Fault, case: Case, twin: int) -> Outcome:
    """A fresh process, so that nothing of one run is left for the next."""
    path = record_of(fault, case, twin)
    path.unlink(missing_ok=True)
    asked = ["--folder", str(case.folder), "--record", str(path), "--severity", case.severity]
    asked += ["--seed", str(case.seed), "--steps", str(case.steps), *(["--removed"] if twin else [])]
    command = [sys.executable, "-m", "benchmarks.faults.single_run", fault.name, *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise PenstockError(f"{' '.join(command[2:])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
