"""Every DataLoader of the script: described, numbered, each pass a track. The script gets torch's own iterators."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import dataloader as torch_loader

from penstock.observe import torchloader
from penstock.observe.hooks.callers import asked_by_watch, iterated_name
from penstock.observe.hooks.forward import Forward
from penstock.observe.hooks.known import Known
from penstock.observe.hooks.patches import Patches
from penstock.observe.hooks.phases import Phases
from penstock.observe.loaders import count_samples
from penstock.observe.session import Track
from penstock.observe.start import Watching
from penstock.observe.torchside import TorchSide

MARK = "_penstock_pass"
"""The attribute by which an iterator of torch's knows its pass."""

Make = Callable[[Any], Iterator[Any]]


class _Met(TorchSide):
    """A loader of the script's: known, but not kept alive."""

    def __init__(self, loader: Any, number: int, watching: Watching) -> None:
        super().__init__(weakref.proxy(loader), number, iterated_name(), watching.spool, watching.session.began)
        self.passes = 0

    def begin(self, loader: Any, make: Make) -> Iterator[Any]:
        """torch's own iterator, with a stopwatch in its workers."""
        number, self.passes = self.passes, self.passes + 1
        return self._timed(loader, number, make)


class _Pass:
    """An iterator under watch."""

    def __init__(self, side: _Met, track: Track) -> None:
        self.side = side
        self.track = track
        self.made_s = 0.0
        """Making the iterator starts the workers: it belongs to the wait for the first batch."""


class Loaders:
    """Keeps the two doors of torch's DataLoader: `iter` of it, and `next` of what that gives."""

    def __init__(self, watching: Watching, phases: Phases, forward: Forward) -> None:
        self._watching = watching
        self._session = watching.session
        self._phases = phases
        self._forward = forward
        self._known: Known[_Met] = Known(watching)
        self._open: set[_Pass] = set()

    def install(self, patches: Patches) -> None:
        """For all loaders, of any subclass."""
        make, advance = torch_loader.DataLoader.__iter__, torch_loader._BaseDataLoaderIter.__next__

        def __iter__(loader: Any) -> Any:
            if self._session.off or asked_by_watch():
                return make(loader)
            return self._begin(loader, make)

        patches.set(torch_loader.DataLoader, "__iter__", __iter__)
        patches.set(torch_loader._BaseDataLoaderIter, "__next__", self._advancing(advance))
        patches.also(self._leave_all)

    def _begin(self, loader: Any, make: Make) -> Iterator[Any]:
        under_way = self._pass_of(loader)
        if under_way is None:
            return make(loader)
        began = self._session.clock.now()
        self._phases.waiting = True
        try:
            iterator = under_way.side.begin(loader, make)
        except BaseException:
            self._ended(under_way, "raised")
            raise
        finally:
            self._phases.waiting = False
        under_way.made_s = self._session.clock.now() - began
        with self._session.guard():
            setattr(iterator, MARK, under_way)
            weakref.finalize(iterator, self._ended, under_way, "left").atexit = False
            self._open.add(under_way)
        return iterator

    def _pass_of(self, loader: Any) -> _Pass | None:
        try:
            side = self._known.side_of(loader, lambda number: _Met(loader, number, self._watching))
            before = getattr(getattr(loader, "_iterator", None), MARK, None)
            if before is not None:  # workers persist, and so does their iterator: the pass before may have been left
                self._ended(before, "left")
            return _Pass(side, self._session.begin(side.number, side.passes, count_samples))
        except Exception as error:
            self._session.fail(error)
            return None

    def _ended(self, under_way: _Pass, how: str) -> None:
        """However often it is called, the first is what counts."""
        self._open.discard(under_way)
        if not self._session.off:
            with self._session.guard():
                under_way.track.ended(how)

    def _leave_all(self) -> None:
        for under_way in tuple(self._open):
            self._ended(under_way, "left")

    def _advancing(self, advance: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`next` of torch's iterators; one function, because it runs at every step with cold caches."""
        session, phases, forward = self._session, self._phases, self._forward
        look, take_parts = torchloader.look, torchloader.take_parts

        def __next__(iterator: Any) -> Any:
            under_way: _Pass | None = iterator.__dict__.get(MARK)
            if under_way is None or session.off:
                return advance(iterator)
            track = under_way.track
            try:
                seen = look(iterator)
                track.asked()
                if under_way.made_s:
                    track._asked -= under_way.made_s
                    under_way.made_s = 0.0
            except Exception as error:
                session.fail(error)
                return advance(iterator)
            phases.waiting = True
            try:
                batch = advance(iterator)
            except StopIteration:
                self._ended(under_way, "done")
                raise
            except BaseException:
                self._ended(under_way, "raised")
                raise
            finally:
                phases.waiting = False
            try:
                track.got(batch, seen, take_parts(iterator))
                forward.step(track.batch)
            except Exception as error:
                session.fail(error)
            return batch

        return __next__
