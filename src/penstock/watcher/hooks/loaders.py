"""Every DataLoader of the script: described, numbered, each pass a track. The script gets torch's own iterators."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from torch.utils.data import dataloader as torch_loader

from penstock.watcher.dataloader.main_process import TorchSide
from penstock.watcher.hooks.callers import asked_by_watch, iterated_name
from penstock.watcher.hooks.current_epoch import MARK, UnderWay
from penstock.watcher.hooks.next_batch import Advance
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import Phases
from penstock.watcher.loader_views import Side
from penstock.watcher.start import Watching
from penstock.watcher.step_sampling import Choice

S = TypeVar("S", bound=Side)


class Known(Generic[S]):
    """By the loader itself."""

    def __init__(self, watching: Watching) -> None:
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


class _Met(TorchSide):
    """A loader of the script's: known, but not kept alive."""

    def __init__(self, loader: Any, number: int, watching: Watching) -> None:
        super().__init__(weakref.proxy(loader), number, iterated_name(), watching.spool, watching.session.began)
        self.passes = 0

    def begin(self, loader: Any, make: Make) -> Iterator[Any]:
        """torch's own iterator, with a stopwatch in its workers."""
        number, self.passes = self.passes, self.passes + 1
        return self._timed(loader, number, make)


class Loaders:
    """Keeps the two doors of torch's DataLoader: `iter` of it, and `next` of what that gives."""

    def __init__(self, watching: Watching, phases: Phases) -> None:
        self._watching = watching
        self._session = watching.session
        self._phases = phases
        self._known: Known[_Met] = Known(watching)
        self._open: set[UnderWay] = set()
        self._choices: defaultdict[str, Choice] = defaultdict(Choice)
        """By name: a loader that is made anew for every epoch goes on."""

    def install(self, patches: Patches) -> None:
        """At `next`, which all iterators have in common, torchdata's too."""
        door = Advance(self._phases, self._ended, torch_loader._BaseDataLoaderIter.__next__)
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

    def _pass_of(self, loader: Any) -> tuple[_Met, UnderWay] | None:
        try:
            side = self._known.side_of(loader, lambda number: _Met(loader, number, self._watching))
            before = getattr(getattr(loader, "_iterator", None), MARK, None)
            if before is not None:  # workers persist, and so does their iterator: the pass before may have been left
                self._ended(before, "left")
            return side, UnderWay(self._session, side.number, side.passes, self._choices[side.name])
        except Exception as error:
            self._session.fail(error)
            return None

    def _ended(self, under_way: UnderWay, how: str) -> None:
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
