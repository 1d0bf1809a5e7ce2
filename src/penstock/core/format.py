"""Formatting of numbers for people: counts, bytes, rates, durations, percentages and gains.

Reports, findings, plans, log lines and error messages all print their numbers through these functions.
"""

from __future__ import annotations

GAIN_AS_FACTOR = 0.995
"""Gains from this one on (twice the rate) are printed as factors: "×4.2" is easier to read than "+320%"."""
SECONDS_UP_TO_S = 600.0
"""`format_seconds` prints seconds below this, as training logs do, ..."""
MINUTES_UP_TO_S = 7200.0
"""... minutes below this, and hours above."""
NOT_KNOWN = "not known"


def format_number(value: float) -> str:
    """Return a number with three significant digits, or as a whole number from 100 on: 0.123, 12.3, 1,234."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_short(value: float) -> str:
    """Return a number with at most one decimal, or two below 1: 22409, 310, 12.3, 0.4, 0.04."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}".rstrip("0").rstrip(".")


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 worker", "3 workers"; `plural` is for nouns that take more than an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or f'{noun}s'}"


def format_bytes(count: float) -> str:
    """Return a size with three digits and a decimal unit: 1 MB is 10⁶ bytes, as in every rate."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.5 or unit == "PB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.95 else f"{value:.3g} {unit}"


def format_byte_rate(bytes_per_s: float) -> str:
    """Return a rate in bytes per second, in the units of `format_bytes`: 2.38 GB/s."""
    return f"{format_bytes(bytes_per_s)}/s"


def format_duration(seconds: float) -> str:
    """Return a duration with three digits in the largest unit of which it has one: 3.5 µs, 12 ms, 1.5 min, 2.31 d."""
    if seconds == 0:
        return "0 s"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def format_seconds(seconds: float) -> str:
    """Return a duration in seconds up to ten minutes, so that it can be compared with the seconds of a training log."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < SECONDS_UP_TO_S:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    if seconds < MINUTES_UP_TO_S:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def format_time_left(seconds: float) -> str:
    """Return the time that work should still take: "about 12 s left", "about 3 min left"."""
    if seconds < 1:
        return "nearly done"
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"


def format_ms(seconds: float) -> str:
    """Return the time of a step or a wait in milliseconds, from one second on in seconds: 0.42 ms, 3.1 s."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2f} ms"


def format_percent(share: float, *, unit: str = "%") -> str:
    """Return a share (0 to 1) in percent, with one decimal below 10%; `unit` may hold a space before the sign."""
    decimals = 0 if share >= 0.0995 or share < 0.0005 else 1
    return f"{100 * share:.{decimals}f}{unit}"


def format_gain(gain: float | None) -> str:
    """Return a relative gain: "+85%", "×2.0" from twice the rate on, "not known" for None."""
    if gain is None:
        return NOT_KNOWN
    return f"{gain:+.0%}" if gain < GAIN_AS_FACTOR else f"×{format_short(1 + gain)}"
