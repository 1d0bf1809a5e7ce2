"""Times phases on the GPU's clock, with events at both ends of a phase. No code ever waits for an event.

DeviceTimer records the events, and DeferredSteps holds each step back until its events have completed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.recording.format import AnyLine, EndLine, EpochEndLine, StepLine
from penstock.watcher.session import Session, Sink

MAX_WAITING_LINES = 64
"""Lines that may wait for events. If there are more, the oldest one goes on without GPU times."""
DEVICE_PHASES = frozenset({"forward", "backward", "optimizer", "h2d"})
"""Phases that give work to the GPU. The others use the host alone."""


class DeviceEvent(Protocol):
    """The methods of torch.cuda.Event that are used here."""

    def record(self) -> None:
        """Put the event behind the work that the current stream has."""
        ...

    def query(self) -> bool:
        """Return whether the GPU has reached the event."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this event to a later one."""
        ...


class DeviceSpan(NamedTuple):
    """One run of a phase, between two events."""

    path: str
    """Name of the phase; outer/inner for one inside another."""
    begin: DeviceEvent
    end: DeviceEvent


class DeviceTimer:
    """Records an event at both ends of each phase, on the stream that is current at that time. It reuses events."""

    def __init__(self, session: Session, make_event: Callable[[], DeviceEvent], usable: Callable[[], bool]) -> None:
        self._session = session
        self._make_event = make_event
        self._usable = usable
        """Whether an event may be recorded now.

        It may not before the script itself has used the GPU, and not on a stream that is captured into a graph."""
        self._free: list[DeviceEvent] = []
        """Events to reuse."""
        self._open: list[tuple[tuple[str, ...], DeviceEvent]] = []
        """Open phases, outermost first, each as the names of the session's open phases and the event at its begin."""
        self._spans: dict[int, tuple[dict[str, float], list[DeviceSpan]]] = {}
        """The spans of each step, by the id of the step's dict of phases, which the step's line carries later."""
        self._query_lock = threading.RLock()
        self._captures = 0
        """CUDA graphs that are being captured now."""

    def enter(self, name: str) -> None:
        """Record the begin of a phase, which the session has entered just before."""
        if name not in DEVICE_PHASES or not self._usable():
            return
        path = self._path()
        while self._open and len(self._open[-1][0]) >= len(path):  # left open when a new batch came
            self._open.pop()
        self._open.append((path, self._recorded_event()))

    def leave(self) -> None:
        """Record the end of the innermost phase, which the session leaves just after."""
        tracker = self._session._current
        if tracker is None or not self._open or self._open[-1][0] != self._path():
            return
        path, begin = self._open.pop()
        if self._usable():
            _, spans = self._spans.setdefault(id(tracker.phases), (tracker.phases, []))
            spans.append(DeviceSpan("/".join(path), begin, self._recorded_event()))

    def _path(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._session._open)

    def take(self, phases: dict[str, float]) -> list[DeviceSpan]:
        """Return the spans of the step that has this dict of phases, and forget them."""
        _, spans = self._spans.pop(id(phases), (None, []))
        return spans

    def read(self, spans: Sequence[DeviceSpan]) -> dict[str, float] | None:
        """Return the seconds of each phase, by path; None if the GPU has not reached all events.

        Spans that were read must not be read again, because their events are reused.
        """
        with self._query_lock:
            times = None if self._captures and spans else _read(spans)
        for span in spans if times else ():
            self._free += (span.begin, span.end)
        return times

    def capture_begins(self) -> None:
        """Stop querying events: during the capture of a graph, a query of any event by any thread makes it fail."""
        with self._query_lock:
            self._captures += 1

    def capture_ends(self) -> None:
        """Allow queries again, after a capture that succeeded or failed."""
        with self._query_lock:
            self._captures = max(0, self._captures - 1)

    def _recorded_event(self) -> DeviceEvent:
        event = self._free.pop() if self._free else self._make_event()
        event.record()
        return event


class DeferredSteps:
    """A sink in front of another one that holds steps back, in order, until the GPU has reached their events.

    Whenever a line of any kind arrives, it checks whether held steps can be passed on. Lines of the machine arrive
    every second, so a step is not held until the next step ends, which may be long after or, in a crash, never.
    """

    def __init__(self, inner: Sink, timer: DeviceTimer) -> None:
        self._inner = inner
        self._timer = timer
        self._waiting: deque[tuple[StepLine | EpochEndLine, list[DeviceSpan]]] = deque()
        self._release_lock = threading.Lock()

    def put(self, line: AnyLine) -> None:
        """Hold a step or the end of an epoch back; pass any other line on at once."""
        if isinstance(line, StepLine):
            self._waiting.append((line, self._timer.take(line.phases)))
        elif isinstance(line, EpochEndLine):
            self._waiting.append((line, []))
        else:
            if isinstance(line, EndLine):
                self._release_all()
            self._inner.put(line)
        self._release_ready()

    def close(self) -> None:
        """Pass on what is held back, and close the other sink."""
        self._release_all()
        self._inner.close()

    def _release_all(self) -> None:
        """Pass on all lines; steps whose events have not completed go without GPU times."""
        self._release_ready()
        while self._waiting:
            self._inner.put(self._waiting.popleft()[0])

    def _release_ready(self) -> None:
        """Pass on the lines that need not wait any longer, unless another thread is doing that: order must be kept."""
        if not self._release_lock.acquire(blocking=False):
            return
        try:
            while self._waiting:
                line, spans = self._waiting[0]
                times = self._timer.read(spans)
                if times is None and len(self._waiting) <= MAX_WAITING_LINES:
                    return
                self._waiting.popleft()
                self._inner.put(msgspec.structs.replace(line, device_phases=times) if times else line)
        finally:
            self._release_lock.release()


def _read(spans: Sequence[DeviceSpan]) -> dict[str, float] | None:
    """Return the seconds by path; None if the GPU has not reached all events. In an error state, times are missing."""
    times: dict[str, float] = {}
    with suppress(RuntimeError):  # an error of the GPU, which the script itself will report
        if not all(span.end.query() for span in reversed(spans)):
            return None
        for span in spans:
            times[span.path] = times.get(span.path, 0.0) + span.begin.elapsed_time(span.end) / 1e3
    return times


def cuda_timer(session: Session) -> DeviceTimer:
    """Return a timer that uses torch.cuda.Event."""
    import torch

    def make_event() -> DeviceEvent:
        event: DeviceEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return event

    def usable() -> bool:
        initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return initialized and not torch.cuda.is_current_stream_capturing()

    return DeviceTimer(session, make_event, usable)
