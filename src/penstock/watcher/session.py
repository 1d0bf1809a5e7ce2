"""The session of one watched run: turns the steps of the training loop into lines and passes these to the sinks.

Only a few clock reads and one append per step run on the training's own threads. Since its last call, the work of the
step has filled the CPU's caches, so every further call would cost microseconds. Steps are therefore only noted there,
and `flush` makes their lines on another thread. An error of the watcher turns it off and never reaches the training.
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
from penstock.watcher.loader_views import UNKNOWN_STATE, UNKNOWN_WAIT, LoaderState, WaitParts

log = logging.getLogger("penstock")


FLUSH_WAIT_S = 1.0
"""Seconds to wait for another thread that is in `flush`, which takes about a millisecond."""


Counts = tuple[int | None, int | None, int | None]
"""Ready batches, outstanding tasks and the awaited worker: a `LoaderState`, or a plain tuple of the same values."""


class Sink(Protocol):
    """A receiver of lines. It is called on the training's threads too, so it must return fast."""

    def put(self, line: AnyLine) -> None:
        """Take one line."""
        ...

    def close(self) -> None:
        """Note that no more lines follow."""
        ...


class StackSamplerControl(Protocol):
    """A stack sampler that can be paused."""

    active: bool
    """Whether it samples. It does not while the training loop is in a loader, where other samplers take over."""

    def resume(self) -> None:
        """Sample from now on, because the training loop has received a batch."""
        ...


class _FinishedStep(NamedTuple):
    """A step that has ended, as the training loop noted it. Times are seconds on the session's clock."""

    tracker: StepTracker
    batch: int
    requested_s: float
    received_s: float
    ended_s: float
    samples: int | None
    phases: dict[str, float] | None
    profiled: bool
    loader_state: Counts
    wait_parts: WaitParts


class Session:
    """One watched run: its clock, its sinks and the state of its training loop. It is closed when the run ends."""

    def __init__(self, sinks: list[Sink], clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.clock_start = clock.now()
        """The time on that clock when the run began; all times of the recording count from it."""
        self.off = False
        """Whether nothing is recorded any more."""
        self._guard = Guard(self)
        self._sinks = sinks
        self._finished_steps: deque[tuple[Any, ...]] = deque()
        """Steps whose lines no sink has got yet, as tuples with the fields of `_FinishedStep`."""
        self._flush_lock = threading.Lock()
        self._loader_numbers = itertools.count()
        self._current: StepTracker | None = None
        """The epoch whose batch the training loop is working on: phases count to its step."""
        self.unprofiled = False
        """Whether the current step is not profiled, see step_sampling.py."""
        self.waiting = False
        """Whether the training loop is in a loader. What a dataset does there in this process is no phase of a step."""
        self.stack_sampler: StackSamplerControl | None = None
        """Samples the thread of the training loop while that works on a batch."""
        self.on_profiled_step: Callable[[int], None] | None = None
        """Called when the batch of a profiled step has arrived, with the index of the batch in its epoch."""
        self.lone_batch: StepTracker | None = None
        """An epoch that was left after its first batch while the step of that batch goes on: `next(iter(loader))`."""
        self._loop_thread: int | None = None
        """The thread of the training loop. Phases of other threads do not count to the step."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an object that profiles nothing.

        Some tools, such as MLflow, pickle a script's classes by value. The patched `__call__` of its models refers to
        the session.
        """
        return SimpleNamespace, (), {"unprofiled": True}

    def now(self) -> float:
        """Return the seconds since the run began."""
        return self.clock.now() - self.clock_start

    def put(self, line: AnyLine) -> None:
        """Pass a line to every sink, after the steps that ended before it."""
        if self._finished_steps:
            self.flush()
        for sink in self._sinks:
            sink.put(line)

    def flush(self, wait_s: float = 0.0) -> None:
        """Pass the lines of all finished steps to the sinks.

        If another thread is doing so, wait for it at most `wait_s` seconds and leave the rest to it. The wait must be
        bounded, because the garbage collector or a signal may call this on a thread that is already in it.
        """
        if not self._flush_lock.acquire(timeout=wait_s):
            return
        try:
            while (line := self._next_line()) is not None:
                for sink in self._sinks:
                    sink.put(line)
        finally:
            self._flush_lock.release()

    def _next_line(self) -> StepLine | None:
        """Remove the oldest finished step and return its line; None if there is none, or another thread took it."""
        try:
            step = _FinishedStep(*self._finished_steps.popleft())
        except IndexError:
            return None
        ready, outstanding, worker = step.loader_state
        return StepLine(
            loader=step.tracker._loader,
            epoch=step.tracker._number,
            batch=step.batch,
            at_s=step.requested_s - self.clock_start,
            wait_s=step.received_s - step.requested_s,
            idle_s=step.wait_parts.idle_s,
            step_s=step.ended_s - step.received_s,
            samples=step.samples,
            phases=step.phases or {},
            profiled=step.profiled,
            ready=ready,
            outstanding=outstanding,
            worker=worker,
        )

    def fail(self, error: BaseException) -> None:
        """Turn the watcher off because of an error in it, and report the error in the log and to the sinks."""
        self.off = True
        with suppress(Exception):  # raised by a log handler of the script
            log.warning("watching stopped: %s: %s", type(error).__name__, error, exc_info=error)
        detail = {"error": f"{type(error).__name__}: {error}"}
        self.put_last(EventLine(what="watcher_failed", at_s=self.now(), detail=detail))

    def put_last(self, line: AnyLine) -> None:
        """Pass the finished steps and this line to every sink, also to those after a sink that raises."""
        for each in (*iter(self._next_line, None), line):
            for sink in self._sinks:
                with suppress(Exception):
                    sink.put(each)

    def guard(self) -> AbstractContextManager[None]:
        """Return a context for the watcher's code on the training's thread: an error in it turns the watcher off."""
        return self._guard

    def close(self) -> None:
        """Close every sink. Nothing is recorded after that."""
        self.off = True
        with suppress(Exception):
            self.flush(FLUSH_WAIT_S)
        for sink in self._sinks:
            with suppress(Exception):
                sink.close()

    # -- loaders -----------------------------------------------------------------------------------------------

    def new_loader_number(self) -> int:
        """Return the number of a loader that is new to this run."""
        return next(self._loader_numbers)

    def begin_epoch(self, loader: int, number: int, samples_of: Callable[[Any], int | None]) -> StepTracker:
        """Begin an epoch, that is one iteration over a loader. `samples_of` counts the samples of a batch."""
        return StepTracker(self, loader, number, samples_of)

    def end_lone_batch(self) -> None:
        """End the step of a lone batch, because the training loop requests its next batch from some loader."""
        tracker, self.lone_batch = self.lone_batch, None
        if tracker is not None:
            tracker.end_step(self.clock.now())
            if self._current is tracker:
                self._current = None

    # -- phases ------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> list[tuple[str, float]]:
        """The open phases of the current step, outermost first."""
        return [] if self._current is None else self._current.open

    def enter(self, name: str) -> None:
        """Begin a phase of the step, possibly inside another one. Only calls on the training loop's thread count."""
        if not self.off and threading.get_ident() == self._loop_thread:
            self._open.append((name, self.clock.now()))

    def leave(self) -> None:
        """End the innermost phase."""
        tracker = self._current
        if not self.off and threading.get_ident() == self._loop_thread and tracker is not None and tracker.open:
            tracker.leave(self.clock.now())

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context for one phase of the step."""
        return PhaseGuard(self, name)


class StepTracker:
    """One epoch of a loader: notes each request for a batch and its arrival, and so the steps between them."""

    def __init__(self, session: Session, loader: int, number: int, samples_of: Callable[[Any], int | None]) -> None:
        self.phases: dict[str, float] = {}
        """Seconds by phase in the current step."""
        self.profiled = True
        """Whether the current step is profiled."""
        self.open: list[tuple[str, float]] = []
        """The open phases and when each began, outermost first."""
        self._session = session
        self._loader = loader
        self._number = number
        self._samples_of = samples_of
        self.batch = 0
        """The index of the current batch in the epoch; while the training loop waits, that of the next batch."""
        self._requested_s = 0.0
        """When the last batch was requested, on the session's clock."""
        self._received_s: float | None = None
        """When it arrived; None while the training loop waits for it."""
        self._loader_state: Counts = UNKNOWN_STATE
        self._wait_parts = UNKNOWN_WAIT
        self._samples: int | None = None
        self._ended = False
        session.end_lone_batch()
        self._outer = session._current
        """The epoch in one of whose steps this one began, such as the training around an evaluation."""
        self._outer_batch = -1 if self._outer is None else self._outer.batch
        self._began_s = session.clock.now()
        session.put(EpochStartLine(loader=loader, epoch=number, at_s=session.now()))

    def batch_requested(self) -> None:
        """Note that the training loop requests its next batch. This ends the step of the previous one."""
        session = self._session
        if session.lone_batch is not None:
            session.end_lone_batch()
        self.end_step(session.clock.now())
        if session.stack_sampler is not None:
            session.stack_sampler.active = False

    def end_step(self, now: float) -> None:
        """Note the current step, if there is one, as finished. The wait for the next batch begins."""
        if self._received_s is not None:
            while self.open:  # phases that were left open end with the step
                self.leave(now)
            self._session._finished_steps.append(  # a plain tuple: to make a _FinishedStep takes three times as long
                (
                    self,
                    self.batch,
                    self._requested_s,
                    self._received_s,
                    now,
                    self._samples,
                    self.phases,
                    self.profiled,
                    self._loader_state,
                    self._wait_parts,
                )
            )
            self.phases = {}  # the line of the finished step keeps the dictionary
            self.batch += 1
            self._received_s = None
        self._requested_s = now

    def batch_received(
        self, batch: Any, loader_state: LoaderState = UNKNOWN_STATE, wait_parts: WaitParts = UNKNOWN_WAIT
    ) -> None:
        """Note that a batch has arrived. This begins its step.

        `loader_state` is the state of the loader when the batch was requested, `wait_parts` what is known of the wait.
        """
        session = self._session
        self._received_s = session.clock.now()
        self._loader_state = loader_state
        self._wait_parts = wait_parts
        self._samples = self._samples_of(batch)
        self.phases = {"sampler": wait_parts.sampler_s} if wait_parts.sampler_s else {}
        self.profiled = not session.unprofiled
        session._current = self
        session._loop_thread = threading.get_ident()
        self.open.clear()
        if session.stack_sampler is not None:
            session.stack_sampler.resume()
        if self.profiled and session.on_profiled_step is not None:
            session.on_profiled_step(self.batch)

    def end(self, how: str = "done") -> None:
        """End the epoch, and its last step unless that is of a lone batch. A second call does nothing.

        `how` is done, left or raised.
        """
        if self._ended:
            return
        self._ended = True
        session, outer = self._session, None if self._outer is None or self._outer._ended else self._outer
        in_first_step = self.batch == 0 and self._received_s is not None and session._current is self
        if how == "left" and in_first_step and outer is None:
            session.lone_batch = self
            session.put(EpochEndLine(loader=self._loader, epoch=self._number, at_s=session.now(), how=how))
            return
        self.batch_requested()
        ended_s = self._requested_s
        session.flush(FLUSH_WAIT_S)
        at_s = ended_s - session.clock_start
        session.put(EpochEndLine(loader=self._loader, epoch=self._number, at_s=at_s, how=how))
        if session._current is self:
            session._current = outer
            if outer is not None and outer.batch == self._outer_batch:  # within one step of the other loader
                outer.exclude("evaluation", ended_s - self._began_s)
            if session.stack_sampler is not None:
                session.stack_sampler.active = False
                if outer is not None:
                    session.stack_sampler.resume()

    def leave(self, now: float) -> None:
        """End the innermost phase."""
        name, since = self.open.pop()
        path = "/".join([*(outer for outer, _ in self.open), name]) if self.open else name
        self.phases[path] = self.phases.get(path, 0.0) + now - since

    def exclude(self, name: str, seconds: float) -> None:
        """Count the last `seconds` as a phase of that name, and not to the phases that are open around it."""
        self.phases[name] = self.phases.get(name, 0.0) + seconds
        self.open[:] = [(phase, since + seconds) for phase, since in self.open]
