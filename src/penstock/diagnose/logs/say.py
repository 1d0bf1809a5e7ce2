"""Numbers in sentences."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 600:
        return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def percent(share: float) -> str:
    """A share, without false digits."""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def rate(batches_per_s: float, batch_size: int | None) -> str:
    """Batches a second, and samples where a batch's size is known."""
    text = f"{batches_per_s:.3g} batches/s"
    return text if batch_size is None else f"{text} ({batches_per_s * batch_size:.3g} samples/s at batch {batch_size})"
