"""How quickly a store has answered of late: so that a request which takes far longer is asked once more."""

from __future__ import annotations

from collections import deque

REMEMBERED = 256
LEAST = 32
"""Answers seen before any can be called slow."""
HIGH = 0.9
SLOWER = 2.0
"""A request is in the slow tail when it takes this many times what nine of ten take."""
LEAST_WAIT_S = 0.02
ONE_IN = 10
"""Of all requests, asked twice at most: where everything has become slow, more requests would make it worse."""
SAVED = 16
"""Second requests that quick times leave to slow ones: after an hour without one, not all of them are doubled."""


class Pace:
    """Of one store. Used by the channel's thread only."""

    def __init__(self) -> None:
        self._answers: deque[float] = deque(maxlen=REMEMBERED)
        self._unused = 0
        """Requests since the last that was asked twice, so to speak: each second one costs ten."""
        self._since_sorted = self._chunked = 0
        self._slow_s: float | None = None

    def answered(self, seconds: float) -> None:
        """An answer began to come after so long."""
        self._answers.append(seconds)
        self._since_sorted += 1
        if len(self._answers) >= LEAST and (self._slow_s is None or self._since_sorted >= LEAST):
            self._since_sorted = 0
            self._slow_s = max(LEAST_WAIT_S, SLOWER * sorted(self._answers)[int(HIGH * len(self._answers))])

    def patience_s(self) -> float | None:
        """How long to wait for a new request before it is asked again; None as long as nobody can say."""
        self._unused = min(self._unused + 1, ONE_IN * SAVED)
        return self._slow_s

    def may_ask_twice(self) -> bool:
        """Whether one more second request is within the share; counts it."""
        if self._unused < ONE_IN:
            return False
        self._unused -= ONE_IN
        return True

    def stalled(self) -> None:
        """A whole answer was too much for the time of a stall: the network may be too slow for any."""
        self._chunked = REMEMBERED

    def takes_whole(self) -> bool:
        """Whether the next answer is to be taken whole, rather than chunk by chunk."""
        self._chunked = max(0, self._chunked - 1)
        return self._chunked == 0
