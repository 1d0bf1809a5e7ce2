"""Ranks beside each other, step by step: who was the last, and what that cost the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

HOLDS = 0.05
"""Of the time: a rank that costs the others less does not hold them back."""
MOSTLY = 2 / 3
"""Of what all ranks cost each other: a rank that causes less of it is one of several."""


@dataclass(frozen=True)
class RankSkew:
    """Of the steps that all ranks had: a row for each rank."""

    ranks: tuple[int, ...]
    late_s: NDArray[np.float64]
    """How late each was, in every step: whoever has most was the last."""
    time_s: float
    """Of these steps, on average over the ranks."""

    @cached_property
    def alone_s(self) -> NDArray[np.float64]:
        """For each rank, what it was later than any other."""
        second_s, longest_s = np.sort(self.late_s, axis=0)[-2:]
        return np.array([(longest_s - second_s)[self.last(row)].sum() for row in range(len(self.ranks))])

    @cached_property
    def holder(self) -> int | None:
        """The row of the rank that holds the others back."""
        row = int(self.alone_s.argmax())
        costs_s = float(self.alone_s[row])
        holds = costs_s >= HOLDS * self.time_s and costs_s > MOSTLY * float(self.alone_s.sum())
        return row if holds and self.time_s > 0 else None

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.late_s[0])

    def last(self, row: int) -> NDArray[np.bool_]:
        """The steps in which it was the last; where nobody was late, nobody was."""
        longest_s = self.late_s.max(axis=0)
        last: NDArray[np.bool_] = (longest_s > 0) & (self.late_s.argmax(axis=0) == row)
        return last
