"""Measures the GPU's time between steps on its own clock: events are recorded now and read later, never waited for.

    requested ──────────── stalled ────────────────▶ received
                           waiting ─── exposed ────▶ received
    begun ──── copying ────▶ copied                            (on the copy stream)

`requested` lies behind all work that the training loop has launched when it asks for the next batch, `received` behind
the wait for that batch. A GPU that still has work passes both events at once; one that has none is stalled between
them. There is no `waiting` event if the batch is already copied; then nothing of the copy is exposed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from penstock.core.stats import GpuTimes

READ_CHUNK = 48
"""Spans recorded before their events are read. Reading at every batch would cost several times as much per batch."""

Kind = Literal["copying_s", "exposed_s", "stalled_s"]


class GpuTimer:
    """Sums up spans between two events. Batches may be sent by one thread and received by another."""

    def __init__(self, make_event: Callable[[], Any]) -> None:
        """`make_event` returns a CUDA event with timing."""
        self._make_event = make_event
        self._lock = threading.Lock()
        self._unread: deque[tuple[Kind, Any, Any]] = deque()
        """Kind, first and last event of each span that is not read yet."""
        self._last_copied: Any = None
        """The end of the copy that was counted last: time in which two copies run counts once."""
        self._sums: dict[Kind, float] = {"copying_s": 0.0, "exposed_s": 0.0, "stalled_s": 0.0}
        self._requested: Any = None

    def mark(self, stream: Any) -> Any:
        """Record an event behind the work of a stream, and return it."""
        event = self._make_event()
        event.record(stream)
        return event

    def batch_requested(self, stream: Any) -> None:
        """Note that the training loop asks for the next batch."""
        self._requested = self.mark(stream)

    def add_copy(self, begun: Any, copied: Any) -> None:
        """Add the copy of a batch between two events; it ends behind the copies added before."""
        with self._lock:
            self._unread.append(("copying_s", begun, copied))

    def batch_received(self, stream: Any, waiting: Any = None) -> None:
        """Note that the stream has a batch; if the stream had to wait for it, from the event `waiting` on."""
        received = self.mark(stream)
        requested, self._requested = self._requested, None
        with self._lock:
            if waiting is not None:
                self._unread.append(("exposed_s", waiting, received))
            if requested is not None:
                self._unread.append(("stalled_s", requested, received))
            if len(self._unread) >= READ_CHUNK:
                self._read()

    def times(self) -> GpuTimes:
        """Return the sums of all spans that the GPU has passed."""
        with self._lock:
            self._read()
            return GpuTimes(**self._sums)

    def _read(self) -> None:
        while self._unread and self._unread[0][2].query():  # the events before it on its stream have passed as well
            kind, begin, end = self._unread.popleft()
            milliseconds = begin.elapsed_time(end)
            if kind == "copying_s":
                if self._last_copied is not None:
                    milliseconds = min(milliseconds, self._last_copied.elapsed_time(end))
                self._last_copied = end
            self._sums[kind] += milliseconds / 1e3
