"""Rows of the samples that are in use, in one array: those of any samples are taken in a few calls, not one by one.

They are made for a group of neighbouring samples at a time, when the first of them is asked for. There is room for so
many rows; when it is used up, the groups that were made first make room for the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class KeptRows:
    """Used by one thread."""

    def __init__(self, firsts: Ids, width: int, make: Callable[[int], Ids], most: int) -> None:
        """Group g has the samples from `firsts[g]` to `firsts[g + 1]`, and `make(g)` gives their rows."""
        self._firsts = firsts[:-1]
        self._make = make
        largest = int(np.diff(firsts).max(initial=0))
        self._rows: Ids = np.empty((max(largest, min(most, int(firsts[-1]))), width), np.int64)
        self._end = 0
        """Of the group that was made last."""
        self._kept = np.zeros(len(self._firsts), bool)
        self._shifts = np.zeros(len(self._firsts), np.int64)
        """From a sample's number to where its row is, if its group is kept."""
        self._oldest_first: deque[tuple[int, int]] = deque()
        """Where the rows of a group begin, and which it is."""

    def take(self, samples: Ids) -> Ids:
        """Of each sample its row, in memory of its own."""
        groups = np.searchsorted(self._firsts, samples, side="right") - 1
        if self._kept[groups].all():
            return np.take(self._rows, self._shifts[groups] + samples, axis=0)
        taken = np.empty((len(samples), self._rows.shape[1]), np.int64)
        left = np.arange(len(samples))
        while len(left):
            here = self._kept[groups[left]]
            found = left[here]
            taken[found] = self._rows[self._shifts[groups[found]] + samples[found]]
            left = left[~here]
            if len(left):  # one at a time: to keep it, another that is asked for may have to go
                self._keep(int(groups[left[0]]))
        return taken

    def _keep(self, group: int) -> None:
        rows = self._make(group)
        begin = self._end
        if begin + len(rows) > len(self._rows):
            while self._oldest_first and self._oldest_first[0][0] >= begin:
                self._forget_oldest()
            begin = 0
        self._end = begin + len(rows)
        while self._oldest_first and begin <= self._oldest_first[0][0] < self._end:
            self._forget_oldest()
        self._rows[begin : self._end] = rows
        self._shifts[group], self._kept[group] = begin - self._firsts[group], True
        self._oldest_first.append((begin, group))

    def _forget_oldest(self) -> None:
        _, group = self._oldest_first.popleft()
        self._kept[group] = False
