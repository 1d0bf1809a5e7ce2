"""Which runs are made of an example: as it is, with all habits of its report, and with each of them alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.examples.meter import Pace
from benchmarks.examples.single_run import Outcome
from benchmarks.result import in_turns
from penstock.errors import PenstockError

TOLD = 2000
"""Characters of what a run that failed has printed."""


@dataclass(frozen=True)
class Plan:
    """How an example is run."""

    example: str
    habits: tuple[str, ...]
    alone: tuple[str, ...]
    """Of these, which are put back one by one."""
    data: Path
    arguments: tuple[str, ...]
    """For every run: its size and limits."""
    rounds: int
    ablated: int
    """Rounds of the runs with one habit alone, and of the default beside them."""
    timeout_s: float
    """For one run, the first of which makes the data."""


@dataclass(frozen=True)
class Measured:
    """What came of it."""

    example: str
    device: str
    default: list[Pace]
    before: list[Pace]
    """With all habits, in turns with the default."""
    ablated: dict[str, list[Pace]]
    """By the habit that was put back."""
    beside: list[Pace]
    """The default, in turns with those."""
    default_losses: list[float]
    before_losses: list[float]
    """With all habits but another sampler, which draws other samples."""


def measure(plan: Plan) -> Measured:
    default, before = _outcomes(plan, [(), plan.habits], plan.rounds, "--losses")
    beside, *alone = _outcomes(plan, [(), *((habit,) for habit in plan.alone)], plan.ablated)
    return Measured(
        example=plan.example,
        device=default[0].device,
        default=_paces(default),
        before=_paces(before),
        ablated={habit: _paces(outcomes) for habit, outcomes in zip(plan.alone, alone, strict=True) if outcomes},
        beside=_paces(beside),
        default_losses=default[0].losses,
        before_losses=before[0].losses,
    )


def _paces(outcomes: Sequence[Outcome]) -> list[Pace]:
    return [outcome.pace for outcome in outcomes]


def _outcomes(plan: Plan, ways: Sequence[Sequence[str]], rounds: int, *at_first: str) -> list[list[Outcome]]:
    """Of each way, one per round; `at_first` is asked for in the first one alone."""
    outcomes: list[list[Outcome]] = [[] for _ in ways]

    def run(number: int) -> float:
        start = time.perf_counter()
        outcome = _run(plan, ways[number], *(() if outcomes[number] else at_first))
        outcomes[number].append(outcome)
        told, pace = ", ".join(ways[number]) or "nothing", outcome.pace
        print(
            f"{plan.example}, of its report {told}: {pace.samples_s:,.0f} samples/s, {pace.data_share:.1%} without "
            f"data; took {time.perf_counter() - start:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        return pace.samples_s

    in_turns([lambda number=number: run(number) for number in range(len(ways))], rounds)
    return outcomes


def _run(plan: Plan, habits: Sequence[str], *more: str) -> Outcome:
    given = [plan.example, "--data", str(plan.data), *plan.arguments, *more, "--before", *habits]
    command = [sys.executable, "-m", "benchmarks.examples.single_run", *given]
    with tempfile.TemporaryFile() as logged:  # a pipe would have the log wait for us
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=logged, timeout=plan.timeout_s)
        except subprocess.TimeoutExpired:
            raise PenstockError(f"{' '.join(given)}: not done after {plan.timeout_s:.0f} s") from None
        if done.returncode:
            logged.seek(0)
            raise PenstockError(f"{' '.join(given)}: {logged.read().decode(errors='replace')[-TOLD:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
