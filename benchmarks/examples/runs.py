"""Which runs are made of an example: as it is, with all habits of its report, and with each of them alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.examples.meter import Pace
from benchmarks.examples.one import Outcome
from benchmarks.result import in_turns
from penstock.errors import PenstockError

TIMEOUT_S = 300.0
TOLD = 2000
"""Characters of what a run that failed has printed."""
ABLATED = 2
"""Rounds of the runs with one habit, at most."""


@dataclass(frozen=True)
class Plan:
    """How an example is run."""

    example: str
    habits: tuple[str, ...]
    data: Path
    arguments: tuple[str, ...]
    """For every run: its size and limits."""
    rounds: int


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
    default_losses: list[float]
    before_losses: list[float]
    """With all habits but another sampler, which draws other samples."""


def measure(plan: Plan) -> Measured:
    default_losses = _run(plan, (), "--losses")
    before_losses = _run(plan, [habit for habit in plan.habits if habit != "sampler"], "--losses")
    default, before = _timed(plan, [(), plan.habits], plan.rounds)
    alone = _timed(plan, [(habit,) for habit in plan.habits], min(plan.rounds, ABLATED))
    return Measured(
        example=plan.example,
        device=default_losses.device,
        default=default,
        before=before,
        ablated=dict(zip(plan.habits, alone, strict=True)),
        default_losses=default_losses.losses,
        before_losses=before_losses.losses,
    )


def _timed(plan: Plan, ways: Sequence[Sequence[str]], rounds: int) -> list[list[Pace]]:
    """The paces of each way, one per round."""
    paces: list[list[Pace]] = [[] for _ in ways]

    def run(number: int) -> float:
        pace = _run(plan, ways[number]).pace
        assert pace is not None
        paces[number].append(pace)
        told = ", ".join(ways[number]) or "nothing"
        print(f"{plan.example}, of its report {told}: {pace.samples_s:,.0f} samples/s", file=sys.stderr)
        return pace.samples_s

    in_turns([lambda number=number: run(number) for number in range(len(ways))], rounds)
    return paces


def _run(plan: Plan, habits: Sequence[str], *more: str) -> Outcome:
    given = [plan.example, "--data", str(plan.data), *plan.arguments, *more, "--before", *habits]
    command = [sys.executable, "-m", "benchmarks.examples.one", *given]
    with tempfile.TemporaryFile() as logged:  # a pipe would have the log wait for us
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=logged, timeout=TIMEOUT_S)
        if done.returncode:
            logged.seek(0)
            raise PenstockError(f"{' '.join(given)}: {logged.read().decode(errors='replace')[-TOLD:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Outcome)
