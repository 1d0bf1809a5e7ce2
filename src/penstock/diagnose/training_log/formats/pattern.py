"""A format of the user's own: a regular expression with named groups.

Groups: `step` (the number of the step), `epoch`, `total` (steps per epoch), `time` (the whole step, waiting included)
and `wait` or `data` (waiting for the batch) in seconds, or `time_ms`, `wait_ms`, `data_ms`. It is searched for in the
first LINE_CHARS_MAX characters of each line. A pattern that backtracks without end is not refused, only slow: it is the
user's own, and Ctrl-C ends it.
"""

from __future__ import annotations

import re

from penstock.diagnose.training_log.formats.numbers import count, maybe_seconds
from penstock.diagnose.training_log.lines import Meter
from penstock.errors import SettingError

NAME = "--pattern"
LINE_CHARS_MAX = 2_000
_TIMES = ("time", "time_ms")
_WAITS = ("wait", "wait_ms", "data", "data_ms")
_PLACES = ("step", "epoch", "total")


class Pattern:
    """The user's expression, checked when it is made."""

    def __init__(self, expression: str) -> None:
        try:
            self._pattern = re.compile(expression)
        except (re.error, RecursionError, OverflowError) as error:
            raise SettingError(f"the pattern is no regular expression: {error}", stage="pattern") from error
        _check(set(self._pattern.groupindex))
        self._seen = 0

    def parse(self, line: str) -> Meter | None:
        """The times of a line that matches; where no step is named, lines are counted."""
        found = self._pattern.search(line, 0, LINE_CHARS_MAX)
        if found is None:
            return None
        said = {name: text for name, text in found.groupdict().items() if text is not None}
        meter = Meter(
            step=count(said["step"]) if "step" in said else self._seen,
            epoch=count(said["epoch"]) if "epoch" in said else None,
            total=count(said["total"]) if "total" in said else None,
            time_s=_first(said, _TIMES),
            wait_s=_first(said, _WAITS),
        )
        self._seen += 1
        return meter


def _check(groups: set[str]) -> None:
    known = (*_PLACES, *_TIMES, *_WAITS)
    advice = f"Name its groups (?P<name>…) with names of these: {', '.join(known)}"
    if unknown := groups - set(known):
        raise SettingError(f"the pattern has groups of unknown names: {', '.join(sorted(unknown))}", advice=advice)
    if not groups & {*_TIMES, *_WAITS}:
        raise SettingError("the pattern has no group that is a time", advice=advice)


def _first(said: dict[str, str], names: tuple[str, ...]) -> float | None:
    name = next((name for name in names if name in said), None)
    return None if name is None else maybe_seconds(said[name], 1e-3 if name.endswith("_ms") else 1.0)
