"""Run an example by default, with all habits of its field report and with each habit alone, in new processes."""

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

LOG_CHARACTERS = 2000
"""Characters at the end of a failed run's log that its error quotes."""


@dataclass(frozen=True)
class RunPlan:
    """The runs to make of one example."""

    example: str
    habits: tuple[str, ...]
    """All habits of its field report."""
    measured_alone: tuple[str, ...]
    """Those of the habits that are also measured one by one."""
    data: Path
    arguments: tuple[str, ...]
    """Arguments of every run: its size and limits."""
    rounds: int
    """Rounds of a run by default and one with all habits."""
    habit_rounds: int
    """Rounds of a run by default and one with each habit alone."""
    timeout_s: float
    """Seconds for one run; the first run also makes the data."""


@dataclass(frozen=True)
class Measured:
    """The results of all runs of one example."""

    example: str
    device: str
    default: list[Pace]
    before: list[Pace]
    """The runs with all habits, in turns with `default`."""
    with_habit: dict[str, list[Pace]]
    """The runs with one habit alone, by habit."""
    default_beside_habits: list[Pace]
    """The runs by default, in turns with those of `with_habit`."""
    default_losses: list[float]
    """Loss of each step by default."""
    before_losses: list[float]
    """Loss of each step with all habits except another sampler, which would draw other samples."""


def measure(plan: RunPlan) -> Measured:
    default, before = _run_in_turns(plan, [(), plan.habits], plan.rounds, "--losses")
    single_habits = [(habit,) for habit in plan.measured_alone]
    beside, *with_habit = _run_in_turns(plan, [(), *single_habits], plan.habit_rounds)
    return Measured(
        example=plan.example,
        device=default[0].device,
        default=_paces(default),
        before=_paces(before),
        with_habit={
            habit: _paces(outcomes) for habit, outcomes in zip(plan.measured_alone, with_habit, strict=True) if outcomes
        },
        default_beside_habits=_paces(beside),
        default_losses=default[0].losses,
        before_losses=before[0].losses,
    )


def _paces(outcomes: Sequence[Outcome]) -> list[Pace]:
    return [outcome.pace for outcome in outcomes]


def _run_in_turns(
    plan: RunPlan, variants: Sequence[Sequence[str]], rounds: int, *first_arguments: str
) -> list[list[Outcome]]:
    """Return the outcomes of each variant, which is a set of habits, one per round.

    `first_arguments` are added to the first run of each variant.
    """
    outcomes: list[list[Outcome]] = [[] for _ in variants]

    def run(variant: int) -> float:
        start = time.perf_counter()
        outcome = _run(plan, variants[variant], *(() if outcomes[variant] else first_arguments))
        outcomes[variant].append(outcome)
        habits, pace = ", ".join(variants[variant]) or "none", outcome.pace
        print(
            f"{plan.example}, habits: {habits}: {pace.samples_s:,.0f} samples/s, {pace.data_share:.1%} without "
            f"data; took {time.perf_counter() - start:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        return pace.samples_s

    in_turns([lambda variant=variant: run(variant) for variant in range(len(variants))], rounds)
    return outcomes


def _run(plan: RunPlan, habits: Sequence[str], *more: str) -> Outcome:
    arguments = [plan.example, "--data", str(plan.data), *plan.arguments, *more, "--before", *habits]
    command = [sys.executable, "-m", "benchmarks.examples.single_run", *arguments]
    with tempfile.TemporaryFile() as log:  # writing to a pipe could block the run until it is read here
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, timeout=plan.timeout_s)
        except subprocess.TimeoutExpired:
            raise PenstockError(f"{' '.join(arguments)}: not finished after {plan.timeout_s:.0f} s") from None
        if done.returncode:
            log.seek(0)
            raise PenstockError(f"{' '.join(arguments)}: {log.read().decode(errors='replace')[-LOG_CHARACTERS:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
