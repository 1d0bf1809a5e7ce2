"""The hook at `next` of torch's loader iterators, which the script calls at every step."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from penstock.watcher.dataloader.main_process import (
    install_wait_timers,
    queue_state,
    remove_wait_timers,
    take_wait_parts,
)
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.hooks.watched_epoch import WatchedEpoch
from penstock.watcher.loader_views import UNKNOWN_WAIT, count_samples
from penstock.watcher.session import Counts

OnEpochEnd = Callable[[WatchedEpoch, str], None]
"""Called with an epoch that ends and how it ended: done, left or raised."""
Advance = Callable[[Any], Any]
"""A `__next__`: returns the next batch of an iterator."""


class NextBatchHook:
    """Wraps torch's own `__next__`: notes the step before, waits for the batch, and begins the next step."""

    def __init__(self, phases: PhaseHooks, on_epoch_end: OnEpochEnd, advance: Advance) -> None:
        self._session = phases.session
        self._phases = phases
        self._on_epoch_end = on_epoch_end
        self._advance = advance

    def make_next(self) -> Advance:
        """Return the `__next__` that replaces torch's.

        The part for steps that are not profiled is one function, because each call costs microseconds while the code
        is not in the CPU's caches. It repeats the code of `queue_state`, `StepTracker.end_step` and `batch_received`,
        `WatchedEpoch.step_unprofiled` and `count_samples`.
        """
        session, on_epoch_end, advance = self._session, self._on_epoch_end, self._advance
        next_profiled = self._next_profiled
        now, add_finished_step = session.clock.now, session._finished_steps.append

        def __next__(iterator: Any) -> Any:
            epoch: WatchedEpoch | None = iterator._penstock_epoch
            if epoch is None:
                return advance(iterator)
            if not epoch.unprofiled_left:
                return next_profiled(iterator, epoch)
            try:
                if epoch.counts_directly and all(epoch.workers_active):
                    tasks = epoch.tasks
                    task = tasks.get(iterator._rcvd_idx)
                    ready = epoch.queue_base + epoch.queue_sign * epoch.queue_read()
                    ready += len(tasks) - iterator._tasks_outstanding
                    state: Counts = ready, len(tasks), None if task is None else task[0]
                else:
                    state = queue_state(iterator)
                requested_s = now()
                if epoch.open:
                    epoch.end_step(requested_s)
                else:
                    phases = epoch.phases or None
                    add_finished_step(
                        (
                            epoch,
                            epoch.batch,
                            epoch._requested_s,
                            epoch._received_s,
                            requested_s,
                            epoch._samples,
                            phases,
                            epoch.profiled,
                            epoch._loader_state,
                            epoch._wait_parts,
                        )
                    )
                    epoch.batch += 1
                    epoch._received_s = None
                    if phases is not None:
                        epoch.phases = {}
                    epoch._requested_s = requested_s
                epoch.unprofiled_left = epoch.unprofiled_left - 1 if requested_s < epoch.unprofiled_until else 0
                if epoch.profiled:
                    self._stop_profiling(iterator, epoch)
            except Exception as error:
                self._failed(epoch, error)
                return advance(iterator)
            session.waiting = True
            try:
                batch = advance(iterator)
            except BaseException as error:
                on_epoch_end(epoch, "done" if isinstance(error, StopIteration) else "raised")
                raise
            finally:
                session.waiting = False
            try:
                epoch._received_s = now()
                epoch._loader_state = state
                if epoch.phases:  # phases during the wait do not belong to the step
                    epoch.phases = {}
                if epoch.open:
                    epoch.open.clear()
                first = batch[0] if type(batch) is list and batch else batch
                try:
                    shape = getattr(first, "shape", None)
                    epoch._samples = shape[0] if isinstance(shape, tuple) and shape else count_samples(batch)
                except Exception:  # raised by the batch's own `shape`
                    epoch._samples = None
                if session._current is not epoch:
                    self._make_current(epoch)
            except Exception as error:
                self._failed(epoch, error)
            return batch

        return __next__

    def _next_profiled(self, iterator: Any, epoch: WatchedEpoch) -> Any:
        session = self._session
        if session.off:
            return self._advance(iterator)
        try:
            state = queue_state(iterator)
            self._begin_profiled(iterator, epoch)
        except Exception as error:
            self._failed(epoch, error)
            return self._advance(iterator)
        session.waiting = True
        try:
            batch = self._advance(iterator)
        except BaseException as error:
            self._on_epoch_end(epoch, "done" if isinstance(error, StopIteration) else "raised")
            raise
        finally:
            session.waiting = False
        try:
            epoch.batch_received(batch, state, take_wait_parts(iterator))
        except Exception as error:
            self._failed(epoch, error)
        return batch

    def _begin_profiled(self, iterator: Any, epoch: WatchedEpoch) -> None:
        """Put the hooks in and begin a profiled step. The time that this takes counts to the previous step."""
        if self._session.unprofiled:
            self._phases.start_profiling()
        if not epoch.profiled:
            install_wait_timers(iterator)
        epoch.batch_requested()
        epoch.step_profiled()
        epoch._requested_s -= epoch.startup_s
        epoch.startup_s = 0.0

    def _stop_profiling(self, iterator: Any, epoch: WatchedEpoch) -> None:
        """Take the hooks out after a profiled step."""
        self._phases.stop_profiling()
        remove_wait_timers(iterator)
        epoch.profiled = False
        epoch._wait_parts = UNKNOWN_WAIT
        epoch.phases = {}

    def _make_current(self, epoch: WatchedEpoch) -> None:
        """Make this epoch the session's current one, after a step of another epoch."""
        self._session._current = epoch
        self._session._loop_thread = get_ident()
        if not self._session.unprofiled:
            self._phases.stop_profiling()

    def _failed(self, epoch: WatchedEpoch, error: Exception) -> None:
        epoch.unprofiled_left = 0
        if not self._session.off:
            self._session.fail(error)
