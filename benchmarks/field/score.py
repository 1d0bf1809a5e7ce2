"""Judges each setting by what was measured, and sums up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.faults_independent.score import DISTURBED_CORES, IMPLAUSIBLE
from benchmarks.field.manifest import SETTINGS, Setting
from benchmarks.field.run import PROPOSED, Result
from benchmarks.result import Line, Table

WORTHWHILE = 0.05
"""An alternative that gains less shows no cause."""
MIN_RIGHT = 0.9
MIN_INSIDE = 0.8
MAX_WATCHED_COST = 0.01

_SETTINGS = {setting.full_name: setting for setting in SETTINGS}


def truth(result: Result) -> tuple[str, ...]:
    """Return the causes that the measurements show; empty if nothing gains enough."""
    causes: list[str] = []
    for alternative in _SETTINGS[result.name].alternatives:
        if result.gains.get(alternative.name, 0) >= WORTHWHILE:
            causes += alternative.causes
    return tuple(dict.fromkeys(causes))


def outcome(result: Result) -> str:
    if disturbed(result):
        return "void"
    if result.verdict in ("undetermined", "unreadable"):
        return result.verdict
    causes = truth(result)
    if not causes:
        return "false finding" if result.findings else "right"
    if not result.findings:
        return "missed"
    return "right" if result.findings[0] in causes else "wrong"


def disturbed(result: Result) -> bool:
    """Return whether other programs used the machine so much that the verdict names them, or no gain is plausible."""
    implausible = any(gain < IMPLAUSIBLE for gain in result.gains.values())
    return result.other_cores >= DISTURBED_CORES and (result.findings[:1] == ("noisy_neighbour",) or implausible)


def measured(result: Result) -> float | None:
    """Return the gain of the alternative that removes the first finding; data for free, if none is about it."""
    alternatives = _SETTINGS[result.name].alternatives
    if not result.findings:
        return None
    about = [each for each in alternatives if result.findings[0] in each.causes] or [
        a for a in alternatives if a.cached
    ]
    return max((result.gains[each.name] for each in about if each.name in result.gains), default=None)


def proposed_in_use(result: Result) -> list[str]:
    """Return what the plan proposes although the script uses it."""
    setting: Setting = _SETTINGS[result.name]
    changes = [change.lower().replace("-", "_") for change in result.planned]
    return [change for change in changes if any(word in change for word in setting.in_use)]


def lines(results: Sequence[Result]) -> Iterator[Line]:
    """Yield the figures of the score; those without any run are left out."""
    proposed = [result.gains[PROPOSED] for result in results if PROPOSED in result.gains]
    costs = [result.watched_cost for result in results if result.watched_cost is not None]
    results = [result for result in results if not disturbed(result)]
    stated = [result for result in results if truth(result)]
    without = [result for result in results if not truth(result)]
    if stated:
        right = sum(outcome(result) == "right" for result in stated)
        yield Line("cause right", f"{right}", f"of {len(stated)}", right / len(stated), MIN_RIGHT, "at least")
    if without:
        false = sum(outcome(result) == "false finding" for result in without)
        yield Line("findings where nothing gains 5%", f"{false}", f"in {len(without)}", false, 0, "at most")
    inside = [
        result.low <= gain <= result.high
        for result in results
        if result.low is not None and result.high is not None and (gain := measured(result)) is not None
    ]
    if inside:
        what = "measured gain inside the interval"
        yield Line(what, f"{sum(inside)}", f"of {len(inside)}", sum(inside) / len(inside), MIN_INSIDE, "at least")
    if not results:
        return
    undetermined = sum(outcome(result) == "undetermined" for result in results)
    yield Line("undetermined", f"{undetermined}", f"of {len(results)}", undetermined / len(results), 0.1, "at most")
    in_use = sum(bool(proposed_in_use(result)) for result in results)
    yield Line("plans that propose what is in use", f"{in_use}", f"of {len(results)}", in_use, 0, "at most")
    if proposed:
        worse = sum(gain < -WORTHWHILE for gain in proposed)
        yield Line("plans that make it 5% slower", f"{worse}", f"of {len(proposed)}", worse, 0, "at most")
    if costs:
        what = "median cost of watching"
        yield Line(what, f"{median(costs):+.1%}", f"over {len(costs)}", median(costs), MAX_WATCHED_COST, "at most")


COLUMNS = ("setting", "measured", "truth", "findings", "outcome", "expected gain", "watching", "others")
NOTE = (
    "Public scripts, unchanged, each for a few seconds after its first step. Rates are those of the optimizer's steps "
    "after the first 40% of the time, timed by a hook of our own. `cached`: every DataLoader repeats its first batch. "
    "`proposed`: the plan's settings of the DataLoader. An alternative that gains 5% or more makes its causes true. "
    "`watching`: seconds per step under `penstock run` against alone. `others`: cores that other programs used. From "
    "one core on, a verdict that names them is void, and so is a setting with an alternative that is more than 10% "
    "slower. On a CPU OMP_NUM_THREADS is 1."
)


def table(results: Sequence[Result]) -> Table:
    return Table("Public scripts", COLUMNS, [_row(result) for result in results], NOTE)


def verdicts(results: Sequence[Result]) -> Table:
    """Return the sentence of each verdict, and the plan's changes."""
    rows = [(each.name, each.sentence, ", ".join(each.planned) or "no change") for each in results]
    return Table("Verdicts of public scripts", ("setting", "verdict", "plan"), rows, "As printed, untouched.")


def _row(result: Result) -> tuple[str, ...]:
    interval = ""
    if result.gain is not None and result.low is not None and result.high is not None:
        interval = f"{result.gain:+.0%} ({result.low:+.0%} to {result.high:+.0%})"
    return (
        result.name,
        ", ".join(f"{name} {gain:+.0%}" for name, gain in result.gains.items()) or "nothing to change",
        ", ".join(truth(result)) or "nothing",
        ", ".join(result.findings) or result.verdict,
        outcome(result),
        interval,
        "" if result.watched_cost is None else f"{result.watched_cost:+.1%}",
        f"{result.other_cores:.1f}",
    )
