"""`next` of torch's iterators, which the script calls at every step: with all there is, or with next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from penstock.watcher.dataloader import main_process as torchloader
from penstock.watcher.dataloader.main_process import install_wait_timers, remove_wait_timers
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.hooks.watched_epoch import WatchedEpoch
from penstock.watcher.loader_views import UNKNOWN, count_samples
from penstock.watcher.session import Counts

Ended = Callable[[WatchedEpoch, str], None]
"""Told of the end of a pass, and how: done, left or raised."""


class NextBatchHook:
    """Stands around torch's own `next`."""

    def __init__(self, phases: PhaseHooks, ended: Ended, advance: Callable[[Any], Any]) -> None:
        self._session = phases.session
        self._phases = phases
        self._ended = ended
        self._advance = advance

    def next(self) -> Callable[[Any], Any]:
        """For steps that are not looked at it is one function, because each call costs microseconds with cold caches.

        It says itself what `torchloader.look`, `Track.over`, `Track.got`, `WatchedEpoch.passes` and `count_samples` do.
        """
        session, ended, advance, looking = self._session, self._ended, self._advance, self._looking
        now, note = session.clock.now, session._noted.append

        def __next__(iterator: Any) -> Any:
            track: WatchedEpoch | None = iterator._penstock_pass
            if track is None:
                return advance(iterator)
            if not track.unlooked:
                return looking(iterator, track)
            try:
                if track.quick and all(track.workers):
                    tasks = track.tasks
                    task = tasks.get(iterator._rcvd_idx)
                    ready = track.queue_base + track.queue_sign * track.queue_asked()
                    ready += len(tasks) - iterator._tasks_outstanding
                    look: Counts = ready, len(tasks), None if task is None else task[0]
                else:
                    look = torchloader.queue_state(iterator)
                asked = now()
                if track.open:
                    track.over(asked)
                else:
                    phases = track.phases or None
                    note(
                        (
                            track,
                            track.batch,
                            track._asked,
                            track._got,
                            asked,
                            track._samples,
                            phases,
                            track.profiled,
                            track._look,
                            track._parts,
                        )
                    )
                    track.batch += 1
                    track._got = None
                    if phases is not None:
                        track.phases = {}
                    track._asked = asked
                track.unlooked = track.unlooked - 1 if asked < track.until else 0
                if track.profiled:
                    self._look_away(iterator, track)
            except Exception as error:
                self._failed(track, error)
                return advance(iterator)
            session.waiting = True
            try:
                batch = advance(iterator)
            except BaseException as error:
                ended(track, "done" if isinstance(error, StopIteration) else "raised")
                raise
            finally:
                session.waiting = False
            try:
                track._got = now()
                track._look = look
                if track.phases:  # of the wait
                    track.phases = {}
                if track.open:
                    track.open.clear()
                first = batch[0] if type(batch) is list and batch else batch
                try:
                    shape = getattr(first, "shape", None)
                    track._samples = shape[0] if isinstance(shape, tuple) and shape else count_samples(batch)
                except Exception:  # of the batch's own
                    track._samples = None
                if session._current is not track:
                    self._take_over(track)
            except Exception as error:
                self._failed(track, error)
            return batch

        return __next__

    def _looking(self, iterator: Any, track: WatchedEpoch) -> Any:
        """The same for a step that is looked at."""
        session = self._session
        if session.off:
            return self._advance(iterator)
        try:
            look = torchloader.queue_state(iterator)
            self._look_at(iterator, track)
        except Exception as error:
            self._failed(track, error)
            return self._advance(iterator)
        session.waiting = True
        try:
            batch = self._advance(iterator)
        except BaseException as error:
            self._ended(track, "done" if isinstance(error, StopIteration) else "raised")
            raise
        finally:
            session.waiting = False
        try:
            track.got(batch, look, torchloader.take_wait_parts(iterator))
        except Exception as error:
            self._failed(track, error)
        return batch

    def _look_at(self, iterator: Any, track: WatchedEpoch) -> None:
        """What is put in counts to the step before."""
        if self._session.resting:
            self._phases.look()
        if not track.profiled:
            install_wait_timers(iterator)
        track.asked()
        track.looks()
        track._asked -= track.made_s
        track.made_s = 0.0

    def _look_away(self, iterator: Any, track: WatchedEpoch) -> None:
        """The step before was looked at, the one that begins is not."""
        self._phases.rest()
        remove_wait_timers(iterator)
        track.profiled = False
        track._parts = UNKNOWN
        track.phases = {}

    def _take_over(self, track: WatchedEpoch) -> None:
        """The step is this pass's; the one before was another's."""
        self._session._current = track
        self._session._loop = get_ident()
        if not self._session.resting:
            self._phases.rest()

    def _failed(self, track: WatchedEpoch, error: Exception) -> None:
        track.unlooked = 0
        if not self._session.off:
            self._session.fail(error)
