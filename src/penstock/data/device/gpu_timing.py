"""Where the card's time goes between steps, on its own clock: events are recorded now and read later, never waited for.

    asked ──────────────── stalled ────────────────▶ given
                           before ──── exposed ────▶ given
    begun ──── copying ────▶ copied                            (on the copying stream)

`asked` lies behind all that the loop has given the card to do when it asks for the next batch, `given` behind the
waiting for that batch: a card that still has work passes both at once, one that has none is stalled between them.
There is no `before` where the batch has arrived already, and nothing is exposed then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from penstock.core.stats import GpuTimes

READ_AT = 48
"""Spans that wait before anybody looks at their events: at one batch it would cost several times as much each."""

Kind = Literal["copying_s", "exposed_s", "stalled_s"]


class GpuTimer:
    """Spans between two events. Batches may be sent by one thread and received by another."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """`make` gives an event that can be timed."""
        self._make = make
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Kind, Any, Any]] = deque()
        """For their events: `READ_AT`, or what a stream may have to do."""
        self._copied: Any = None
        """The end of the copy that was counted last: time in which two are under way counts once."""
        self._sums: dict[Kind, float] = {"copying_s": 0.0, "exposed_s": 0.0, "stalled_s": 0.0}
        self._asked: Any = None

    def mark(self, stream: Any) -> Any:
        """An event behind what the stream has to do."""
        event = self._make()
        event.record(stream)
        return event

    def asked(self, stream: Any) -> None:
        """The loop wants the next batch."""
        self._asked = self.mark(stream)

    def copied(self, begun: Any, copied: Any) -> None:
        """A batch has been sent between these, and ends behind those before it."""
        with self._lock:
            self._waiting.append(("copying_s", begun, copied))

    def given(self, stream: Any, before: Any = None) -> None:
        """The stream has a batch; if it was told to wait for it, from `before` on."""
        after = self.mark(stream)
        asked, self._asked = self._asked, None
        with self._lock:
            if before is not None:
                self._waiting.append(("exposed_s", before, after))
            if asked is not None:
                self._waiting.append(("stalled_s", asked, after))
            if len(self._waiting) >= READ_AT:
                self._read()

    def times(self) -> GpuTimes:
        """As far as the card has come by."""
        with self._lock:
            self._read()
            return GpuTimes(**self._sums)

    def _read(self) -> None:
        while self._waiting and self._waiting[0][2].query():  # what lies before it on its stream is over as well
            kind, begin, end = self._waiting.popleft()
            milliseconds = begin.elapsed_time(end)
            if kind == "copying_s":
                if self._copied is not None:
                    milliseconds = min(milliseconds, self._copied.elapsed_time(end))
                self._copied = end
            self._sums[kind] += milliseconds / 1e3
