"""The phases of a step, such as forward and backward, as the hooks report their begin and end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from penstock.recording.format import PROFILED_PHASES
from penstock.watcher.device_time import DeviceTimer
from penstock.watcher.session import Session, StepTracker


class PhaseHook(Protocol):
    """A hook that costs time even in a step that is not profiled, and is therefore taken out for such steps."""

    def enable(self) -> None:
        """Put the hook in."""
        ...

    def disable(self) -> None:
        """Take the hook out. A second call does nothing."""
        ...


class PhaseHooks:
    """Times the phases of a session's steps, on the GPU's clock too where there is one.

    Errors of the GPU timer do not reach the script.
    """

    def __init__(self, session: Session, timer: DeviceTimer | None = None) -> None:
        self.session = session
        self._timer = timer
        self.hooks: list[PhaseHook] = []
        """Hooks that are taken out for steps that are not profiled."""

    def start_profiling(self) -> None:
        """Profile the next step."""
        self.session.unprofiled = False
        for hook in self.hooks:
            hook.enable()

    def stop_profiling(self) -> None:
        """Do not profile the next step. Phases that are timed in every step are still timed."""
        self.session.unprofiled = True
        for hook in self.hooks:
            hook.disable()

    def resume(self, tracker: StepTracker | None) -> None:
        """Profile, or not, as the step did that was interrupted by an epoch of another loader."""
        profiled = tracker is None or tracker.profiled
        if profiled == self.session.unprofiled:
            (self.start_profiling if profiled else self.stop_profiling)()

    def remove_all(self) -> None:
        """Take all hooks out for good."""
        self.stop_profiling()
        self.hooks.clear()
        self.session.unprofiled, self.session.on_profiled_step = False, None

    def in_step(self) -> bool:
        """Return whether this thread is the training loop and works on a batch."""
        session = self.session
        return not (session.waiting or session.off or session._current is None) and (
            get_ident() == session._loop_thread
        )

    def enter(self, name: str) -> bool:
        """Begin a phase and return True, unless this thread is not in a step or is in a phase of that name already.

        Where it returns True, the caller must call `leave`. It does what `Session.enter` does with fewer calls,
        because it runs several times per step.
        """
        session = self.session
        tracker = session._current
        if tracker is None or session.waiting or session.off or get_ident() != session._loop_thread:
            return False
        if tracker.open and self.is_open(name):
            return False
        tracker.open.append((name, session.clock.now()))
        if self._timer is not None:
            with session.guard():
                self._timer.enter(name)
        return True

    def leave(self) -> None:
        """End the innermost phase."""
        session = self.session
        tracker = session._current
        if tracker is None or session.off or not tracker.open:
            return
        if self._timer is not None:
            with session.guard():
                self._timer.leave()
        name, since = tracker.open.pop()  # the same as StepTracker.leave, without the call
        path = "/".join([*(outer for outer, _ in tracker.open), name]) if tracker.open else name
        tracker.phases[path] = tracker.phases.get(path, 0.0) + session.clock.now() - since

    def is_open(self, name: str) -> bool:
        """Return whether a phase of that name is open: a log that syncs its file must count once."""
        tracker = self.session._current
        return tracker is not None and bool(tracker.open) and any(name == open_name for open_name, _ in tracker.open)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a timer around it, which counts its calls within a step as a phase.

        The wrapper repeats the code of `enter` and `leave`, because each call costs microseconds: see session.py.
        """
        if self._timer is not None:
            return self._wrap_with_events(name, function)
        session, now, only_profiled = self.session, self.session.clock.now, name in PROFILED_PHASES

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if only_profiled and session.unprofiled:
                return function(*args, **kwargs)
            tracker = session._current
            if tracker is None or session.waiting or session.off or get_ident() != session._loop_thread:
                return function(*args, **kwargs)
            if tracker.open and self.is_open(name):
                return function(*args, **kwargs)
            tracker.open.append((name, now()))
            try:
                return function(*args, **kwargs)
            finally:
                if tracker.open:
                    tracker.leave(now())

        return timed

    def _wrap_with_events(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        session, only_profiled = self.session, name in PROFILED_PHASES

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if (only_profiled and session.unprofiled) or not self.enter(name):
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed
