"""One watched run: who is iterated over, what the loop is doing now, and where all of it goes.

What runs on the training's own threads is a handful of clock reads and one append per step. Its code is never warm
there, the step has had the caches for itself, so every call costs microseconds: lines are made of what was noted, and
told to the sinks, by `settle` on another thread. A failure in here turns the watching off and never reaches the
training.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.recording.format import AnyLine, EpochEndLine, EpochStartLine, EventLine, StepLine
from penstock.watcher.guards import Guard, PhaseGuard
from penstock.watcher.loader_views import NOTHING, UNKNOWN, LoaderState, WaitParts

log = logging.getLogger("penstock")


SETTLE_WAIT_S = 1.0
"""For another thread that is at it; it takes a millisecond."""


Counts = tuple[int | None, int | None, int | None]
"""As a `LoaderState` has them."""


class Sink(Protocol):
    """Takes lines as they come, also on the training's threads: it must be quick, and leave the work to a thread."""

    def put(self, line: AnyLine) -> None:
        """One line."""
        ...

    def close(self) -> None:
        """No more lines."""
        ...


class StackSamplerControl(Protocol):
    """Somebody who may look at the loop's thread, or may not."""

    active: bool
    """Not while the loop is in the loader: others watch that."""

    def resume(self) -> None:
        """The loop has its batch."""
        ...


class _FinishedStep(NamedTuple):
    """A step that is over, as the loop noted it; times on the session's clock."""

    track: StepTracker
    batch: int
    asked: float
    got: float
    over: float
    samples: int | None
    phases: dict[str, float] | None
    profiled: bool
    look: Counts
    parts: WaitParts


class Session:
    """Joins loaders, phases and sinks. Made once per run; closed when the run ends."""

    def __init__(self, sinks: list[Sink], clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.began = clock.now()
        """On that clock: what all times of the recording count from."""
        self.off = False
        self._guard = Guard(self)
        self._sinks = sinks
        self._noted: deque[tuple[Any, ...]] = deque()
        """Steps that no sink has been told of, each as a `_FinishedStep` holds it."""
        self._settling = threading.Lock()
        self._numbers = itertools.count()
        self._current: StepTracker | None = None
        """The pass whose batch the loop is working on: phases are counted there."""
        self.resting = False
        """Nobody looks at the phases of this step that come with every step: see choice.py."""
        self.waiting = False
        """The loop is in a loader: what a dataset does there in this process is no phase of the step."""
        self.looker: StackSamplerControl | None = None
        """Looks at the loop's thread while it works on a batch."""
        self.begins: Callable[[int], None] | None = None
        """Told of every step that is looked at, when its batch is there: the number of that in its pass."""
        self.lone: StepTracker | None = None
        """A pass that was left with its first batch, which is still being worked on: `next(iter(loader))`."""
        self._loop: int | None = None
        """The thread of the loop: phases of other threads are not the step's."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Some pickle a script's classes whole (MLflow does), and those of its models have us at their call."""
        return SimpleNamespace, (), {"resting": True}

    def now(self) -> float:
        """Seconds since the run began."""
        return self.clock.now() - self.began

    def put(self, line: AnyLine) -> None:
        """To every sink, after the steps before it."""
        if self._noted:
            self.settle()
        for sink in self._sinks:
            sink.put(line)

    def settle(self, wait_s: float = 0.0) -> None:
        """Tell the sinks of all steps that are over; leave it to whoever is at it now, or wait for him so long.

        It must not wait without end: a collector's pause or a signal may bring the same thread here twice.
        """
        if not self._settling.acquire(timeout=wait_s):
            return
        try:
            while (line := self._oldest()) is not None:
                for sink in self._sinks:
                    sink.put(line)
        finally:
            self._settling.release()

    def _oldest(self) -> StepLine | None:
        """The line of the step that waits longest, which waits no more; None if none does, or another was quicker."""
        try:
            noted = _FinishedStep(*self._noted.popleft())
        except IndexError:
            return None
        ready, outstanding, worker = noted.look
        return StepLine(
            loader=noted.track._loader,
            epoch=noted.track._number,
            batch=noted.batch,
            at_s=noted.asked - self.began,
            wait_s=noted.got - noted.asked,
            idle_s=noted.parts.idle_s,
            step_s=noted.over - noted.got,
            samples=noted.samples,
            phases=noted.phases or {},
            profiled=noted.profiled,
            ready=ready,
            outstanding=outstanding,
            worker=worker,
        )

    def fail(self, error: BaseException) -> None:
        """Say it once, and watch no more."""
        self.off = True
        with suppress(Exception):  # of the script's own log
            log.warning("watching stopped: %s: %s", type(error).__name__, error, exc_info=error)
        detail = {"error": f"{type(error).__name__}: {error}"}
        self.put_last(EventLine(what="watcher_failed", at_s=self.now(), detail=detail))

    def put_last(self, line: AnyLine) -> None:
        """To every sink that takes it still: one that fails keeps no other from hearing of it, and what led to it."""
        for each in (*iter(self._oldest, None), line):
            for sink in self._sinks:
                with suppress(Exception):
                    sink.put(each)

    def guard(self) -> AbstractContextManager[None]:
        """Around whatever the watcher does on the training's thread: its errors end here."""
        return self._guard

    def close(self) -> None:
        """Give every sink its end; nothing is recorded after it."""
        self.off = True
        with suppress(Exception):
            self.settle(SETTLE_WAIT_S)
        for sink in self._sinks:
            with suppress(Exception):
                sink.close()

    # -- loaders -----------------------------------------------------------------------------------------------

    def number(self) -> int:
        """For a loader that is new to this run."""
        return next(self._numbers)

    def begin(self, loader: int, number: int, samples_of: Callable[[Any], int | None]) -> StepTracker:
        """A pass over a loader."""
        return StepTracker(self, loader, number, samples_of)

    def end_lone(self) -> None:
        """The step of a lone batch is over: the loop asks for the next, wherever it is to come from."""
        track, self.lone = self.lone, None
        if track is not None:
            track.over(self.clock.now())
            if self._current is track:
                self._current = None

    # -- phases ------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> list[tuple[str, float]]:
        """Phases under way in the step of now, outermost first."""
        return [] if self._current is None else self._current.open

    def enter(self, name: str) -> None:
        """A phase of the step begins. Only the loop's own thread counts; phases may lie in one another."""
        if not self.off and threading.get_ident() == self._loop:
            self._open.append((name, self.clock.now()))

    def leave(self) -> None:
        """The innermost phase ends."""
        track = self._current
        if not self.off and threading.get_ident() == self._loop and track is not None and track.open:
            track.leave(self.clock.now())

    def phase(self, name: str) -> AbstractContextManager[None]:
        """`with` around a part of the step."""
        return PhaseGuard(self, name)


class StepTracker:
    """A pass over a loader: turns asking and getting into step lines."""

    def __init__(self, session: Session, loader: int, number: int, samples_of: Callable[[Any], int | None]) -> None:
        self.phases: dict[str, float] = {}
        self.profiled = True
        """Whether the phases of the step under way are looked at."""
        self.open: list[tuple[str, float]] = []
        """Phases under way and when they began, outermost first."""
        self._session = session
        self._loader = loader
        self._number = number
        self._samples_of = samples_of
        self.batch = 0
        """The number of the one under way, or of the next."""
        self._asked = 0.0
        self._got: float | None = None
        self._look: Counts = NOTHING
        self._parts = UNKNOWN
        self._samples: int | None = None
        self._ended = False
        session.end_lone()
        self._outer = session._current
        self._outer_batch = -1 if self._outer is None else self._outer.batch
        self._began = session.clock.now()
        session.put(EpochStartLine(loader=loader, epoch=number, at_s=session.now()))

    def asked(self) -> None:
        """The loop wants the next batch: the step of the last one is over."""
        session = self._session
        if session.lone is not None:
            session.end_lone()
        self.over(session.clock.now())
        if session.looker is not None:
            session.looker.active = False

    def over(self, now: float) -> None:
        """The step of the last batch, if there was one: note it."""
        if self._got is not None:
            while self.open:  # phases that were left open end with the step
                self.leave(now)
            self._session._noted.append(  # as _Noted has it, which takes three times as long to make
                (
                    self,
                    self.batch,
                    self._asked,
                    self._got,
                    now,
                    self._samples,
                    self.phases,
                    self.profiled,
                    self._look,
                    self._parts,
                )
            )
            self.phases = {}  # those of the line are its own from now on
            self.batch += 1
            self._got = None
        self._asked = now

    def got(self, batch: Any, look: LoaderState = NOTHING, parts: WaitParts = UNKNOWN) -> None:
        """It has it: how the loader stood when it asked, and what is known of the wait."""
        session = self._session
        self._got = session.clock.now()
        self._look = look
        self._parts = parts
        self._samples = self._samples_of(batch)
        self.phases = {"sampler": parts.sampler_s} if parts.sampler_s else {}
        self.profiled = not session.resting
        session._current = self
        session._loop = threading.get_ident()
        self.open.clear()
        if session.looker is not None:
            session.looker.resume()
        if self.profiled and session.begins is not None:
            session.begins(self.batch)

    def ended(self, how: str = "done") -> None:
        """No more batches: the last step is over too, but for a lone one's. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        session, outer = self._session, None if self._outer is None or self._outer._ended else self._outer
        if how == "left" and self.batch == 0 and self._got is not None and outer is None and session._current is self:
            session.lone = self
            session.put(EpochEndLine(loader=self._loader, epoch=self._number, at_s=session.now(), how=how))
            return
        self.asked()
        now = self._asked
        session.settle(SETTLE_WAIT_S)
        session.put(EpochEndLine(loader=self._loader, epoch=self._number, at_s=now - session.began, how=how))
        if session._current is self:
            session._current = outer
            if outer is not None and outer.batch == self._outer_batch:  # inside one step of another: an evaluation
                outer.paused("evaluation", now - self._began)
            if session.looker is not None:
                session.looker.active = False
                if outer is not None:
                    session.looker.resume()

    def leave(self, now: float) -> None:
        """The innermost phase ends."""
        name, since = self.open.pop()
        path = "/".join([*(outer for outer, _ in self.open), name]) if self.open else name
        self.phases[path] = self.phases.get(path, 0.0) + now - since

    def paused(self, name: str, seconds: float) -> None:
        """Something that is no part of the step has just ended: phases around it do not count that time."""
        self.phases[name] = self.phases.get(name, 0.0) + seconds
        self.open[:] = [(phase, since + seconds) for phase, since in self.open]
