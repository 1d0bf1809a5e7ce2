"""Each case with its fault and without, in turns, each in a fresh process; and what the diagnosis says of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.faults.verdict import Verdict
from penstock.diagnose.verdict import diagnose
from penstock.errors import PenstockError
from penstock.recording.load import load
from penstock.testing.faults import FAULTS, Case, Fault, Outcome, Severity

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
    """All of them; the twin goes first every other time. `again`: those that were recorded before, from the record."""
    count = 0
    for seed in seeds:
        for severity in severities:
            for name in names:
                case = Case(folder=folder, seed=seed, severity=severity, steps=steps)
                if again and not record_of(FAULTS[name], case).exists():
                    continue
                yield judge(FAULTS[name], case, twin_first=count % 2 == 1, again=again)
                count += 1


def judge(fault: Fault, case: Case, *, twin_first: bool = False, again: bool = False) -> Verdict:
    """Run it, run its twin, and ask what was wrong; `again`: of what was recorded before."""
    began = time.perf_counter()
    outcomes: dict[bool, Outcome] = {}
    twins = [False] if fault.expect is None else [twin_first, not twin_first]
    for removed in twins:
        outcomes[removed] = recorded(fault, case, removed) if again else in_child(fault, case, removed)
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
        actual=None if fault.expect is None else outcomes[True].steps_per_s / outcomes[False].steps_per_s - 1,
        confidence=first.confidence if first else None,
        seconds=time.perf_counter() - began,
    )


def record_of(fault: Fault, case: Case, removed: bool = False) -> Path:
    """Where it is recorded."""
    return case.folder / f"{fault.name}-{case.severity}-{case.seed}{'.twin' if removed else ''}.jsonl"


def recorded(fault: Fault, case: Case, removed: bool) -> Outcome:
    """What it took, by its recording."""
    steps = load(record_of(fault, case, removed)).steps
    first, last = steps[0], steps[-1]
    seconds = last.at_s + last.wait_s + last.step_s - first.at_s - first.wait_s
    return Outcome(steps=len(steps), seconds=seconds)


def in_child(fault: Fault, case: Case, removed: bool) -> Outcome:
    """A fresh process, so that nothing of one run is left for the next."""
    path = record_of(fault, case, removed)
    path.unlink(missing_ok=True)
    asked = ["--folder", str(case.folder), "--record", str(path), "--severity", case.severity]
    asked += ["--seed", str(case.seed), "--steps", str(case.steps), *(["--removed"] if removed else [])]
    command = [sys.executable, "-m", "benchmarks.faults.one", fault.name, *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise PenstockError(f"{' '.join(command[2:])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
