"""Judges results by what was measured: is the cause right, and is the measured gain in the interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from benchmarks.faults_independent.run import Result
from benchmarks.result import Line, Table

HEALTHY_BELOW = 0.05
"""A fault whose removal gains less does no harm on this machine, and nothing is to be found."""
MIN_RIGHT = 0.9
MIN_INSIDE = 0.8

DISTURBED_CORES = 1.0
"""If programs that are no part of the case use so much, a verdict that names them is true, and says nothing."""
IMPLAUSIBLE = -0.1
"""Beside such programs, a smaller gain measures them and not the case."""

Outcome = Literal["right", "wrong", "missed", "false finding", "undetermined", "void"]


def is_healthy(result: Result) -> bool:
    return result.measured < HEALTHY_BELOW


def is_void(result: Result) -> bool:
    """Return whether no truth is known.

    That is so if a training that was meant to be healthy is not on this machine, and if the machine was so busy with
    other programs that the verdict names them, or that the training was much slower without its fault.
    """
    busy = result.other_cores >= DISTURBED_CORES and "noisy_neighbour" not in result.accepted
    if busy and (result.findings[:1] == ("noisy_neighbour",) or result.measured < IMPLAUSIBLE):
        return True
    return not result.accepted and not is_healthy(result)


def outcome(result: Result) -> Outcome:
    """Return how a verdict compares with the truth."""
    if is_void(result):
        return "void"
    if result.verdict == "undetermined":
        return "undetermined"
    if is_healthy(result):
        return "false finding" if result.findings else "right"
    if not result.findings:
        return "missed"
    return "right" if result.findings[0] in result.accepted else "wrong"


def inside(result: Result) -> bool | None:
    """Return whether the measured gain lies in the first finding's interval; None if there is none."""
    if result.low is None or result.high is None:
        return None
    return result.low <= result.measured <= result.high


def lines(results: Sequence[Result]) -> Iterator[Line]:
    """Yield the figures of the score; those without any case are left out."""
    results = [result for result in results if not is_void(result)]
    faulty = [result for result in results if not is_healthy(result)]
    healthy = [result for result in results if is_healthy(result)]
    if faulty:
        right = sum(outcome(result) == "right" for result in faulty)
        yield Line("cause right", f"{right}", f"of {len(faulty)} faulty", right / len(faulty), MIN_RIGHT, "at least")
    if healthy:
        false = sum(outcome(result) == "false finding" for result in healthy)
        yield Line("false findings", f"{false}", f"in {len(healthy)} healthy", false, 0, "at most")
    undetermined = sum(outcome(result) == "undetermined" for result in results)
    yield Line("undetermined", f"{undetermined}", f"of {len(results)}", undetermined / len(results), 0.1, "at most")
    named = [result for result in faulty if outcome(result) == "right" and inside(result) is not None]
    if named:
        held = sum(bool(inside(result)) for result in named)
        what = "gain inside the interval, cause right"
        yield Line(what, f"{held}", f"of {len(named)}", held / len(named), MIN_INSIDE, "at least")


def table(results: Sequence[Result]) -> Table:
    """Return one row for each run."""
    columns = ("case", "accepted", "verdict", "outcome", "expected gain", "measured", "others")
    return Table("Independent faults", columns, [_row(result) for result in results], NOTE)


NOTE = (
    "Each case is a small training in two sizes, with one planted fault or none. The measured gain is that of the "
    "same script without the fault (in a healthy case: with the change that a user would try first), by the rate that "
    "the script prints. If it is below 5%, nothing is to be found. A case is void if it was meant to be healthy and "
    "gains more. Where other programs used a core or more without being a part of the case, it is void too if the "
    "verdict names them, or if the training was more than 10% slower without its fault. `others`: cores that other "
    "processes used during the recorded run, those of the fault among them."
)


def _row(result: Result) -> tuple[str, ...]:
    interval = ""
    if result.gain is not None and result.low is not None and result.high is not None:
        interval = f"{result.gain:+.0%} ({result.low:+.0%} to {result.high:+.0%})"
    return (
        f"{result.name} {result.size}",
        ", ".join(result.accepted) or "nothing",
        ", ".join(result.findings) if result.findings else result.verdict,
        outcome(result),
        interval,
        f"{result.measured:+.0%}",
        f"{result.other_cores:.1f}",
    )
