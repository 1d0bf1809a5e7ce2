"""Numbers as logs write them. A ValueError says that a line names something that cannot be a time or a count."""

from __future__ import annotations

import re
from datetime import UTC, datetime

NUMBER = r"[-+]?(?:\d[\d,]{0,18}(?:\.\d{0,18})?(?:[eE][-+]?\d{1,4})?|\.\d{1,18}|nan|inf)"
"""As a part of a pattern: NaN and negative times are recognised, and then refused.

One way to match and bounded, so that no line can make a pattern backtrack for long.
"""
_SECONDS_MAX = 1e9
_STAMP = re.compile(r"(?<![\d/-])(?:(\d{4})[-/])?(\d{2})[-/](\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,6}))?(?!\d)")
_STAMP_WITHIN_CHARS = 48


def seconds(text: str, unit_s: float = 1.0) -> float:
    """A duration: finite and not negative."""
    value = float(text.replace(",", "")) * unit_s
    if not 0 <= value <= _SECONDS_MAX:
        raise ValueError(f"{value} is no duration")
    return value


def maybe_seconds(text: str | None, unit_s: float = 1.0) -> float | None:
    """The same, where it may not be there."""
    return None if text is None else seconds(text, unit_s)


def count(text: str) -> int:
    """A number of things, with or without separators of thousands."""
    return int(text.replace(",", ""))


def clock(text: str) -> float:
    """SS, MM:SS or H:MM:SS(.fff) in seconds."""
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + seconds(part)
    return total


def stamp(line: str) -> float | None:
    """The time of day at the head of a line, as seconds on the log's clock; without a year, as if in 2000."""
    found = _STAMP.search(line, 0, _STAMP_WITHIN_CHARS)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction = found.groups(default="0")
    try:
        moment = datetime(int(year) or 2000, int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{fraction}")
