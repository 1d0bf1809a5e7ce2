"""The durations of the runs: for the whole benchmark, and for a quick check that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of each kind of run, and the number of rounds."""

    record_s: float
    measure_s: float
    """Seconds after the warm-up of a run that counts."""
    screen_s: float
    """Seconds after the warm-up of a run that only selects the settings to measure."""
    tune_s: float
    rounds: int


FULL = Times(record_s=8.0, measure_s=2.0, screen_s=0.8, tune_s=90.0, rounds=3)
QUICK = Times(record_s=2.0, measure_s=0.3, screen_s=0.1, tune_s=6.0, rounds=1)
