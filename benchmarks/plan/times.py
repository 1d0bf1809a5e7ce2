"""How long each thing is run for: the whole benchmark, or a quick look whether all of it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    record_s: float
    measure_s: float
    """Of a run that counts, after its warm-up."""
    screen_s: float
    """The same of a run that only decides which settings get those."""
    tune_s: float
    rounds: int


FULL = Times(record_s=8.0, measure_s=2.0, screen_s=0.8, tune_s=90.0, rounds=3)
QUICK = Times(record_s=2.0, measure_s=0.3, screen_s=0.1, tune_s=6.0, rounds=1)
