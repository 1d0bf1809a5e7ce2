"""Phases on the device's clock: events are recorded as the step goes and read some steps later, never waited for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.recording.format import AnyLine, EndLine, EpochEndLine, StepLine
from penstock.watcher.session import Session, Sink

HELD_MAX = 64
"""Lines that may wait for their events; the oldest then goes without them."""
ON_DEVICE = frozenset({"forward", "backward", "optimizer", "h2d"})
"""Phases that give the device work. The others are the host's alone."""


class DeviceEvent(Protocol):
    """What we use of torch.cuda.Event."""

    def record(self) -> None:
        """Put it behind what the current stream has to do."""
        ...

    def query(self) -> bool:
        """Whether the device has come by."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds to another."""
        ...


class DeviceSpan(NamedTuple):
    """One phase, once."""

    path: str
    begin: DeviceEvent
    end: DeviceEvent


class DeviceTimer:
    """An event at both ends of a phase, on the stream that is current there. Events are used again."""

    def __init__(self, session: Session, make: Callable[[], DeviceEvent], usable: Callable[[], bool]) -> None:
        self._session = session
        self._make = make
        self._usable = usable
        """Not before the script itself uses the device, and not on a stream whose work is being made into a graph."""
        self._free: list[DeviceEvent] = []
        self._open: list[tuple[tuple[str, ...], DeviceEvent]] = []
        """Phases under way, as the session has them, and where they began."""
        self._spans: dict[int, tuple[dict[str, float], list[DeviceSpan]]] = {}
        """By the identity of a step's phases: its line, when it comes, carries the same dict."""
        self._asking = threading.RLock()
        self._captures = 0
        """Graphs that are being captured now."""

    def enter(self, name: str) -> None:
        """Called when the session has entered it."""
        if name not in ON_DEVICE or not self._usable():
            return
        path = self._path()
        while self._open and len(self._open[-1][0]) >= len(path):  # a new batch forgets what was open
            self._open.pop()
        self._open.append((path, self._recorded()))

    def leave(self) -> None:
        """Called before the session leaves it."""
        track = self._session._current
        if track is None or not self._open or self._open[-1][0] != self._path():
            return
        path, begin = self._open.pop()
        if self._usable():
            _, spans = self._spans.setdefault(id(track.phases), (track.phases, []))
            spans.append(DeviceSpan("/".join(path), begin, self._recorded()))

    def _path(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._session._open)

    def take(self, phases: dict[str, float]) -> list[DeviceSpan]:
        """What was recorded in the step that has these phases."""
        _, spans = self._spans.pop(id(phases), (None, []))
        return spans

    def read(self, spans: Sequence[DeviceSpan]) -> dict[str, float] | None:
        """Seconds by path, for good: the events are used again. None if the device is not there yet."""
        with self._asking:
            times = None if self._captures and spans else _read(spans)
        for span in spans if times else ():
            self._free += (span.begin, span.end)
        return times

    def capture_begins(self) -> None:
        """A graph is about to be captured: a thread that asks for an event meanwhile, for any, would spoil it."""
        with self._asking:
            self._captures += 1

    def capture_ends(self) -> None:
        """However it ended."""
        with self._asking:
            self._captures = max(0, self._captures - 1)

    def _recorded(self) -> DeviceEvent:
        event = self._free.pop() if self._free else self._make()
        event.record()
        return event


class DeferredSteps:
    """A sink before another one: keeps steps back, in order, until their events can be read without waiting.

    Every line that comes, of the machine once a second, is an occasion to look: a step may be long, and a crash near.
    """

    def __init__(self, inner: Sink, timer: DeviceTimer) -> None:
        self._inner = inner
        self._timer = timer
        self._waiting: deque[tuple[StepLine | EpochEndLine, list[DeviceSpan]]] = deque()
        self._releasing = threading.Lock()

    def put(self, line: AnyLine) -> None:
        """Steps and ends of passes wait; whatever else comes goes through."""
        if isinstance(line, StepLine):
            self._waiting.append((line, self._timer.take(line.phases)))
        elif isinstance(line, EpochEndLine):
            self._waiting.append((line, []))
        else:
            if isinstance(line, EndLine):
                self._let_go()
            self._inner.put(line)
        self._release()

    def close(self) -> None:
        """The end of the other, too."""
        self._let_go()
        self._inner.close()

    def _let_go(self) -> None:
        """What is not ready by now goes without."""
        self._release()
        while self._waiting:
            self._inner.put(self._waiting.popleft()[0])

    def _release(self) -> None:
        """Leave it to whoever is at it now: several threads bring lines, and each line has its place."""
        if not self._releasing.acquire(blocking=False):
            return
        try:
            while self._waiting:
                line, spans = self._waiting[0]
                times = self._timer.read(spans)
                if times is None and len(self._waiting) <= HELD_MAX:
                    return
                self._waiting.popleft()
                self._inner.put(msgspec.structs.replace(line, device_phases=times) if times else line)
        finally:
            self._releasing.release()


def _read(spans: Sequence[DeviceSpan]) -> dict[str, float] | None:
    """Seconds by path; None if the device is not there yet, nothing if it can no longer be asked."""
    times: dict[str, float] = {}
    with suppress(RuntimeError):  # the device is in an error state, which is the script's to report
        if not all(span.end.query() for span in reversed(spans)):
            return None
        for span in spans:
            times[span.path] = times.get(span.path, 0.0) + span.begin.elapsed_time(span.end) / 1e3
    return times


def cuda_timer(session: Session) -> DeviceTimer:
    """With torch's own events."""
    import torch

    def make() -> DeviceEvent:
        event: DeviceEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return event

    def usable() -> bool:
        ready: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return ready and not torch.cuda.is_current_stream_capturing()

    return DeviceTimer(session, make, usable)
