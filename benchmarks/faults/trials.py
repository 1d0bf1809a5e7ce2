"""Run each case without its fault, with it and without it again, each in a new process, and diagnose the recording.

The speed of a shared machine varies with time, so the run with the fault is compared with the mean of the runs before
and after it. Such a run without the fault is called a baseline.
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
WITH_FAULT, BASELINE_BEFORE, BASELINE_AFTER = 0, 1, 2
"""Numbers of the runs of a case."""


def run(
    names: Sequence[str],
    seeds: Sequence[int],
    severities: Sequence[Severity],
    folder: Path,
    steps: int,
    again: bool = False,
) -> Iterator[Verdict]:
    """Yield the verdict of every case. With `again` nothing is run: those with a recording are diagnosed again."""
    for seed in seeds:
        for severity in severities:
            for name in names:
                case = Case(folder=folder, seed=seed, severity=severity, steps=steps)
                if not again or record_of(FAULTS[name], case).exists():
                    yield judge(FAULTS[name], case, recorded_outcome if again else run_in_child)


def judge(fault: Fault, case: Case, outcome_of: Callable[[Fault, Case, int], Outcome]) -> Verdict:
    """Get the outcomes of the runs of a case, diagnose the recording, and compare the diagnosis with the outcomes.

    `outcome_of(fault, case, run number)` does a run, or reads its recording. A case without a fault has no baselines.
    """
    start = time.perf_counter()
    run_numbers = (WITH_FAULT,) if fault.expect is None else (BASELINE_BEFORE, WITH_FAULT, BASELINE_AFTER)
    rates = {number: outcome_of(fault, case, number).steps_per_s for number in run_numbers}
    diagnosis = diagnose(load(record_of(fault, case)))
    first = diagnosis.findings[0] if diagnosis.findings else None
    return Verdict(
        fault=fault.name,
        severity=case.severity,
        seed=case.seed,
        expect=fault.expect,
        named=first.rule if first else None,
        verdict=diagnosis.verdict,
        findings=len(diagnosis.findings),
        predicted=first.gain if first else None,
        actual=None if fault.expect is None else _gain(rates),
        confidence=first.confidence if first else None,
        seconds=time.perf_counter() - start,
    )


def _gain(rates: dict[int, float]) -> float:
    """Return the relative gain of removing the fault, from the steps per second by run number."""
    return harmonic_mean((rates[BASELINE_BEFORE], rates[BASELINE_AFTER])) / rates[WITH_FAULT] - 1


def record_of(fault: Fault, case: Case, run_number: int = WITH_FAULT) -> Path:
    """Return the path of a run's recording."""
    suffix = "" if run_number == WITH_FAULT else f".baseline{run_number}"
    return case.folder / f"{fault.name}-{case.severity}-{case.seed}{suffix}.jsonl"


def recorded_outcome(fault: Fault, case: Case, run_number: int) -> Outcome:
    """Return the steps and the seconds of a run by its recording."""
    steps = load(record_of(fault, case, run_number)).steps
    first, last = steps[0], steps[-1]
    seconds = last.at_s + last.wait_s + last.step_s - first.at_s - first.wait_s
    return Outcome(steps=len(steps), seconds=seconds)


def run_in_child(fault: Fault, case: Case, run_number: int) -> Outcome:
    """Do a run in a new process, so that no state of one run is left for the next."""
    path = record_of(fault, case, run_number)
    path.unlink(missing_ok=True)
    arguments = ["--folder", str(case.folder), "--record", str(path), "--severity", case.severity]
    arguments += ["--seed", str(case.seed), "--steps", str(case.steps)]
    if run_number != WITH_FAULT:
        arguments.append("--removed")
    command = [sys.executable, "-m", "benchmarks.faults.single_run", fault.name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise PenstockError(f"{' '.join(command[2:])} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
