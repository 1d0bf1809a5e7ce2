"""Where the hooks say that a phase of the step begins or ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from penstock.recording.format import PROFILED_PHASES
from penstock.watcher.device_time import DeviceTimer
from penstock.watcher.session import Session, StepTracker


class PhaseHook(Protocol):
    """Something that costs even where nobody looks."""

    def on(self) -> None:
        """Steps are looked at."""
        ...

    def off(self) -> None:
        """They are not. A second call does nothing."""
        ...


class PhaseHooks:
    """The session's phases, and the device's where there is one. Nothing in here can reach the script."""

    def __init__(self, session: Session, timer: DeviceTimer | None = None) -> None:
        self.session = session
        self._timer = timer
        self.hooks: list[PhaseHook] = []
        """Those that are out while nobody looks."""

    def look(self) -> None:
        """At the step that comes."""
        self.session.resting = False
        for hook in self.hooks:
            hook.on()

    def rest(self) -> None:
        """Nobody looks at it; phases that are seen in every step go on."""
        self.session.resting = True
        for hook in self.hooks:
            hook.off()

    def back_to(self, track: StepTracker | None) -> None:
        """A pass inside a step has ended, and that step goes on as it was."""
        profiled = track is None or track.profiled
        if profiled == self.session.resting:
            (self.look if profiled else self.rest)()

    def end(self) -> None:
        """All hooks out, for good."""
        self.rest()
        self.hooks.clear()
        self.session.resting, self.session.begins = False, None

    def counts(self) -> bool:
        """Whether what this thread does now belongs to a step."""
        session = self.session
        return not (session.waiting or session.off or session._current is None) and (get_ident() == session._loop)

    def enter(self, name: str) -> bool:
        """A phase begins, if this thread is now in a step, and not in such a phase already: then it is to be left.

        What `session.enter` does, with fewer calls: this runs several times a step.
        """
        session = self.session
        track = session._current
        if track is None or session.waiting or session.off or get_ident() != session._loop:
            return False
        if track.open and self.is_open(name):
            return False
        track.open.append((name, session.clock.now()))
        if self._timer is not None:
            with session.guard():
                self._timer.enter(name)
        return True

    def leave(self) -> None:
        """The innermost ends."""
        session = self.session
        track = session._current
        if track is None or session.off or not track.open:
            return
        if self._timer is not None:
            with session.guard():
                self._timer.leave()
        name, since = track.open.pop()  # what track.leave does
        path = "/".join([*(outer for outer, _ in track.open), name]) if track.open else name
        track.phases[path] = track.phases.get(path, 0.0) + session.clock.now() - since

    def is_open(self, name: str) -> bool:
        """A log that syncs its file is one phase, not two."""
        track = self.session._current
        return track is not None and bool(track.open) and any(name == under_way for under_way, _ in track.open)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, as a phase of the step wherever it is called in one.

        It says what `enter` and `leave` do, in one piece: see session.py for why.
        """
        if self._timer is not None:
            return self._around_with_events(name, function)
        session, now, rests = self.session, self.session.clock.now, name in PROFILED_PHASES

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if rests and session.resting:
                return function(*args, **kwargs)
            track = session._current
            if track is None or session.waiting or session.off or get_ident() != session._loop:
                return function(*args, **kwargs)
            if track.open and self.is_open(name):
                return function(*args, **kwargs)
            track.open.append((name, now()))
            try:
                return function(*args, **kwargs)
            finally:
                if track.open:
                    track.leave(now())

        return timed

    def _around_with_events(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        session, rests = self.session, name in PROFILED_PHASES

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if (rests and session.resting) or not self.enter(name):
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed
