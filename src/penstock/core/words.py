"""Numbers for people."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """Three digits and a decimal unit: 1 MB is 10⁶ bytes, as in every rate."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.5 or unit == "PB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.95 else f"{value:.3g} {unit}"
