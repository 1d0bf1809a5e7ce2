"""Every DataLoader of the script: described, numbered, each pass a track. The script gets torch's own iterators."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from torch.utils.data import dataloader as torch_loader

from penstock.recording.format import AnyLine
from penstock.watcher.dataloader.main_process import TorchLoaderView
from penstock.watcher.hooks.callers import asked_by_watch, iterated_name
from penstock.watcher.hooks.next_batch import NextBatchHook
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.hooks.watched_epoch import MARK, WatchedEpoch
from penstock.watcher.loader_views import LoaderView, PenstockLoaderView
from penstock.watcher.start import WatchedRun
from penstock.watcher.step_sampling import StepSampling
from penstock.watcher.watch import passing

S = TypeVar("S", bound=LoaderView)


class KnownLoader(Generic[S]):
    """By the loader itself."""

    def __init__(self, watching: WatchedRun) -> None:
        self._watching = watching
        self._sides: weakref.WeakKeyDictionary[Any, S] = weakref.WeakKeyDictionary()

    def side_of(self, loader: Any, meet: Callable[[int], S]) -> S:
        """Its side; a loader that is new gets a number from the session, and is described."""
        side = self._sides.get(loader)
        if side is None:
            session = self._watching.session
            side = self._sides[loader] = meet(session.number())
            self._watching.sides.append(side)
            session.put(side.describe())
        return side


Make = Callable[[Any], Iterator[Any]]


class _TorchLoaderEntry(TorchLoaderView):
    """A loader of the script's: known, but not kept alive."""

    def __init__(self, loader: Any, number: int, watching: WatchedRun) -> None:
        super().__init__(weakref.proxy(loader), number, iterated_name(), watching.worker_files, watching.session.began)
        self.passes = 0

    def begin(self, loader: Any, make: Make) -> Iterator[Any]:
        """torch's own iterator, with a stopwatch in its workers."""
        number, self.passes = self.passes, self.passes + 1
        return self._make_iterator(loader, number, make)


class TorchLoaderHooks:
    """Keeps the two doors of torch's DataLoader: `iter` of it, and `next` of what that gives."""

    def __init__(self, watching: WatchedRun, phases: PhaseHooks) -> None:
        self._watching = watching
        self._session = watching.session
        self._phases = phases
        self._known: KnownLoader[_TorchLoaderEntry] = KnownLoader(watching)
        self._open: set[WatchedEpoch] = set()
        self._choices: defaultdict[str, StepSampling] = defaultdict(StepSampling)
        """By name: a loader that is made anew for every epoch goes on."""

    def install(self, patches: Patches) -> None:
        """At `next`, which all iterators have in common, torchdata's too."""
        door = NextBatchHook(self._phases, self._ended, torch_loader._BaseDataLoaderIter.__next__)
        patches.set(torch_loader._BaseDataLoaderIter, MARK, None)
        patches.set(torch_loader._BaseDataLoaderIter, "__next__", door.next())
        patches.also(self._leave_all)

    def meet(self, kind: Any, patches: Patches) -> None:
        """Stand at its `iter`, if it is torch's, or torchdata's, which gives torch's kind without asking torch."""
        if not issubclass(kind, torch_loader.DataLoader):
            return
        make: Make = kind.__iter__

        def __iter__(loader: Any) -> Any:
            if self._session.off or asked_by_watch():
                return make(loader)
            return self._begin(loader, make)

        patches.set(kind, "__iter__", __iter__)

    def _begin(self, loader: Any, make: Make) -> Iterator[Any]:
        begun = self._pass_of(loader)
        if begun is None:
            return make(loader)
        side, under_way = begun
        began = self._session.clock.now()
        self._session.waiting = True
        try:
            iterator = side.begin(loader, make)
        except BaseException:
            self._ended(under_way, "raised")
            raise
        finally:
            self._session.waiting = False
        made_s = self._session.clock.now() - began
        with self._session.guard():
            under_way.mark(iterator, made_s)
            weakref.finalize(iterator, self._ended, under_way, "left").atexit = False
            self._open.add(under_way)
        return iterator

    def _pass_of(self, loader: Any) -> tuple[_TorchLoaderEntry, WatchedEpoch] | None:
        try:
            side = self._known.side_of(loader, lambda number: _TorchLoaderEntry(loader, number, self._watching))
            before = getattr(getattr(loader, "_iterator", None), MARK, None)
            if before is not None:  # workers persist, and so does their iterator: the pass before may have been left
                self._ended(before, "left")
            return side, WatchedEpoch(self._session, side.number, side.passes, self._choices[side.name])
        except Exception as error:
            self._session.fail(error)
            return None

    def _ended(self, under_way: WatchedEpoch, how: str) -> None:
        """However often it is called, the first is what counts."""
        self._open.discard(under_way)
        if not self._session.off:
            with self._session.guard():
                under_way.ended(how)
                self._phases.back_to(self._session._current)

    def _leave_all(self) -> None:
        for under_way in tuple(self._open):
            self._ended(under_way, "left")
        with self._session.guard():
            self._session.end_lone()


class _PenstockLoaderEntry(PenstockLoaderView):
    """A loader of the script's: known, but not kept alive."""

    def __init__(self, loader: Any, number: int) -> None:
        super().__init__(weakref.proxy(loader), number, iterated_name())
        self.passes = 0
        self._alive = weakref.ref(loader)

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Nothing, once it is gone."""
        loader = self._alive()
        return () if loader is None else super().poll(at_s)


class PenstockLoaderHooks:
    """Stands at `iter`; what that gives is a generator, with us or without."""

    def __init__(self, watching: WatchedRun, phases: PhaseHooks) -> None:
        self._session = watching.session
        self._phases = phases
        self._known: KnownLoader[_PenstockLoaderEntry] = KnownLoader(watching)
        self._choices: defaultdict[str, StepSampling] = defaultdict(StepSampling)
        """By name, as for torch's."""

    def meet(self, kind: Any, patches: Patches) -> None:
        """Stand at its door, if it is ours."""
        if kind.__module__ != "penstock.loader":  # which is not imported for our sake
            return
        make = kind.__iter__

        def __iter__(loader: Any) -> Iterator[Any]:
            batches: Iterator[Any] = make(loader)
            if self._session.off or asked_by_watch():
                return batches
            begun = self._begin(loader)
            if begun is None:
                return batches
            side, track = begun
            return passing(track, side, lambda: batches, partial(self._asked, track), partial(self._ended, track))

        patches.set(kind, "__iter__", __iter__)

    def _begin(self, loader: Any) -> tuple[_PenstockLoaderEntry, WatchedEpoch] | None:
        try:
            side = self._known.side_of(loader, lambda number: _PenstockLoaderEntry(loader, number))
            number, side.passes = side.passes, side.passes + 1
            return side, WatchedEpoch(self._session, side.number, number, self._choices[side.name])
        except Exception as error:
            self._session.fail(error)
            return None

    def _asked(self, track: WatchedEpoch) -> None:
        """The step that begins is looked at, or it is not."""
        profiled = not track.unlooked
        if profiled == self._session.resting:
            (self._phases.look if profiled else self._phases.rest)()
        track.asked()
        if profiled:
            track.looks()
        else:
            track.passes()

    def _ended(self, track: WatchedEpoch, how: str) -> None:
        track.ended(how)
        self._phases.back_to(self._session._current)
