"""A resource of which everybody present gets a share: cores, storage."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf


class Shared:
    """A resource that serves all who are there at once, at a speed that depends on how many there are.

    Its own clock counts the seconds of service that each of them got, so what somebody is still owed needs no
    touching when others come and go.
    """

    __slots__ = ("_jobs", "_served", "_speed", "_speeds", "_then", "next_s")

    def __init__(self, speeds: Sequence[float]) -> None:
        """`speeds` are those that each gets with one, two… of them there."""
        self._speeds = speeds
        self._jobs: list[tuple[float, int]] = []
        self._served = self._then = 0.0
        self._speed = 1.0
        self.next_s = inf
        """When the next one is done, if nobody comes."""

    def __len__(self) -> int:
        """How many are there."""
        return len(self._jobs)

    def enter(self, now: float, work_s: float, who: int) -> None:
        """Stay until served for so long."""
        self._served += (now - self._then) * self._speed
        heappush(self._jobs, (self._served + work_s, who))
        self._plan(now)

    def leave(self) -> int:
        """The one who is done, at `next_s`."""
        self._served, who = heappop(self._jobs)
        self._plan(self.next_s)
        return who

    def _plan(self, now: float) -> None:
        self._then = now
        if not self._jobs:
            self._served, self.next_s = 0.0, inf
            return
        self._speed = self._speeds[len(self._jobs) - 1]
        # The sum of many small services may be a hair beyond what the first was owed.
        self.next_s = now + max(0.0, self._jobs[0][0] - self._served) / self._speed
