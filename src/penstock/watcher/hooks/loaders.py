"""Hooks that watch all loaders of a script: each gets a number, a description, and a WatchedEpoch per epoch.

The script iterates over torch's own iterators, not over wrappers.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from torch.utils.data import dataloader as torch_loader

from penstock.recording.format import AnyLine
from penstock.watcher.dataloader.main_process import TorchLoaderView
from penstock.watcher.hooks.callers import called_by_watch, iterated_name
from penstock.watcher.hooks.next_batch import NextBatchHook
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import PhaseHooks
from penstock.watcher.hooks.watched_epoch import EPOCH_ATTRIBUTE, WatchedEpoch
from penstock.watcher.loader_views import LoaderView, PenstockDataLoaderView, PenstockLoaderView
from penstock.watcher.start import WatchedRun
from penstock.watcher.step_sampling import StepSampling
from penstock.watcher.watch import watched_batches

View = TypeVar("View", bound=LoaderView)
PENSTOCK_MODULE = "penstock.dataloader"
"""The module of penstock.DataLoader, which the watcher must not import."""


class LoaderViews(Generic[View]):
    """The views of the loaders of one kind that the script has iterated over; it keeps no loader alive."""

    def __init__(self, run: WatchedRun) -> None:
        self._run = run
        self._views: weakref.WeakKeyDictionary[Any, View] = weakref.WeakKeyDictionary()

    def get_or_add(self, loader: Any, make: Callable[[int], View]) -> View:
        """Return the loader's view; a new loader gets a number from the session, and its description is recorded."""
        view = self._views.get(loader)
        if view is None:
            session = self._run.session
            view = self._views[loader] = make(session.new_loader_number())
            self._run.loader_views.append(view)
            session.put(view.describe())
        return view


MakeIterator = Callable[[Any], Iterator[Any]]
"""An `__iter__`: returns an iterator over a loader."""


class _WeakTorchLoaderView(TorchLoaderView):
    """The view of a torch DataLoader of the script, which does not keep the loader alive."""

    def __init__(self, loader: Any, number: int, run: WatchedRun) -> None:
        super().__init__(
            weakref.proxy(loader), number, iterated_name(loader), run.worker_files, run.session.clock_start
        )
        self.epochs = 0
        """The number of epochs that were begun."""

    def make_iterator(self, loader: Any, make: MakeIterator) -> Iterator[Any]:
        """Begin an epoch: return torch's own iterator, with timers in its workers."""
        number, self.epochs = self.epochs, self.epochs + 1
        return self._make_iterator(loader, number, make)


class _WeakPenstockDataLoaderView(PenstockDataLoaderView):
    """The view of a penstock.DataLoader of the script, which does not keep the loader alive."""

    def __init__(self, loader: Any, number: int) -> None:
        super().__init__(weakref.proxy(loader), number, iterated_name(loader))
        self.epochs = 0
        """The number of epochs that were begun."""
        self._loader_ref = weakref.ref(loader)

    def make_iterator(self, loader: Any, make: MakeIterator) -> Iterator[Any]:
        """Begin an epoch: return the loader's own iterator."""
        self.epochs += 1
        return super().make_iterator(loader, make)

    def processes(self) -> dict[int, int]:
        """Return the worker processes; none after the loader was deleted."""
        loader = self._loader_ref()
        return {} if loader is None else super().processes()

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Return the lines of the loader; none after it was deleted."""
        loader = self._loader_ref()
        return () if loader is None else super().poll(at_s)


_EpochView = _WeakTorchLoaderView | _WeakPenstockDataLoaderView


class TorchLoaderHooks:
    """Hooks at `iter` of torch's DataLoader classes and of penstock.DataLoader, and at `next` of their iterators."""

    def __init__(self, run: WatchedRun, phases: PhaseHooks) -> None:
        self._run = run
        self._session = run.session
        self._phases = phases
        self._views: LoaderViews[_EpochView] = LoaderViews(run)
        self._open: set[WatchedEpoch] = set()
        """Epochs that have not ended."""
        self._sampling: defaultdict[str, StepSampling] = defaultdict(StepSampling)
        """One per name of a loader, because a script may make a new loader for every epoch."""

    def install(self, patches: Patches) -> None:
        """Replace `next` of the base class of all iterators, torchdata's included."""
        hook = NextBatchHook(self._phases, self._epoch_ended, torch_loader._BaseDataLoaderIter.__next__)
        patches.set(torch_loader._BaseDataLoaderIter, EPOCH_ATTRIBUTE, None)
        patches.set(torch_loader._BaseDataLoaderIter, "__next__", hook.make_next())
        patches.on_undo(self._end_all)

    def patch_class(self, loader_class: Any, patches: Patches) -> None:
        """Replace `iter` of a class, if it is a torch DataLoader.

        torchdata's class needs a patch of its own: its `iter` makes torch's iterators without a call of torch's `iter`.
        """
        if not issubclass(loader_class, torch_loader.DataLoader):
            return
        if loader_class.__module__ == PENSTOCK_MODULE:
            self._patch_engine_iteration(patches)
        make: MakeIterator = loader_class.__iter__

        def __iter__(loader: Any) -> Any:
            if self._session.off or called_by_watch():
                return make(loader)
            return self._begin_epoch(loader, make)

        patches.set(loader_class, "__iter__", __iter__)

    def _patch_engine_iteration(self, patches: Patches) -> None:
        """Replace `next` of the iterators of penstock.DataLoader that are none of torch's."""
        iteration = sys.modules[PENSTOCK_MODULE].EngineIteration
        hook = NextBatchHook(self._phases, self._epoch_ended, iteration.__next__)
        patches.set(iteration, EPOCH_ATTRIBUTE, None)
        patches.set(iteration, "__next__", hook.make_next())

    def _begin_epoch(self, loader: Any, make: MakeIterator) -> Iterator[Any]:
        view_and_epoch = self._new_epoch(loader)
        if view_and_epoch is None:
            return make(loader)
        view, epoch = view_and_epoch
        began = self._session.clock.now()
        self._session.waiting = True
        try:
            iterator = view.make_iterator(loader, make)
        except BaseException:
            self._epoch_ended(epoch, "raised")
            raise
        finally:
            self._session.waiting = False
        startup_s = self._session.clock.now() - began
        with self._session.guard():
            epoch.attach(iterator, startup_s)
            weakref.finalize(iterator, self._epoch_ended, epoch, "left").atexit = False
            self._open.add(epoch)
        return iterator

    def _new_view(self, loader: Any, number: int) -> _EpochView:
        penstock = sys.modules.get(PENSTOCK_MODULE)
        if penstock is not None and isinstance(loader, penstock.DataLoader) and loader.runs_on_engine:
            return _WeakPenstockDataLoaderView(loader, number)
        return _WeakTorchLoaderView(loader, number, self._run)

    def _new_epoch(self, loader: Any) -> tuple[_EpochView, WatchedEpoch] | None:
        try:
            view = self._views.get_or_add(loader, lambda number: self._new_view(loader, number))
            previous = getattr(getattr(loader, "_iterator", None), EPOCH_ATTRIBUTE, None)
            if previous is not None:  # persistent workers keep their iterator, so no finalizer ended a left epoch
                self._epoch_ended(previous, "left")
            return view, WatchedEpoch(self._session, view.number, view.epochs, self._sampling[view.name])
        except Exception as error:
            self._session.fail(error)
            return None

    def _epoch_ended(self, epoch: WatchedEpoch, how: str) -> None:
        """End an epoch. Only the first call for an epoch counts."""
        self._open.discard(epoch)
        if not self._session.off:
            with self._session.guard():
                epoch.end(how)
                self._phases.resume(self._session._current)

    def _end_all(self) -> None:
        for epoch in tuple(self._open):
            self._epoch_ended(epoch, "left")
        with self._session.guard():
            self._session.end_lone_batch()


class _WeakPenstockLoaderView(PenstockLoaderView):
    """The view of a penstock.Loader of the script, which does not keep the loader alive."""

    def __init__(self, loader: Any, number: int) -> None:
        super().__init__(weakref.proxy(loader), number, iterated_name(loader))
        self.epochs = 0
        """The number of epochs that were begun."""
        self._loader_ref = weakref.ref(loader)

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Return the lines of the loader; none after it was deleted."""
        loader = self._loader_ref()
        return () if loader is None else super().poll(at_s)


class PenstockLoaderHooks:
    """The hook at `iter` of penstock.Loader.

    The iterators of this loader are generators, so it changes nothing for the script to wrap them in another generator.
    """

    def __init__(self, run: WatchedRun, phases: PhaseHooks) -> None:
        self._session = run.session
        self._phases = phases
        self._views: LoaderViews[_WeakPenstockLoaderView] = LoaderViews(run)
        self._sampling: defaultdict[str, StepSampling] = defaultdict(StepSampling)
        """One per name of a loader, as in TorchLoaderHooks."""

    def patch_class(self, loader_class: Any, patches: Patches) -> None:
        """Replace `iter` of a class, if it is penstock.Loader."""
        if loader_class.__module__ != "penstock.loader":  # compared by name, because the watcher must not import it
            return
        make = loader_class.__iter__

        def __iter__(loader: Any) -> Iterator[Any]:
            batches: Iterator[Any] = make(loader)
            if self._session.off or called_by_watch():
                return batches
            view_and_epoch = self._new_epoch(loader)
            if view_and_epoch is None:
                return batches
            view, epoch = view_and_epoch
            on_request, on_end = partial(self._batch_requested, epoch), partial(self._epoch_ended, epoch)
            return watched_batches(epoch, view, lambda: batches, on_request, on_end)

        patches.set(loader_class, "__iter__", __iter__)

    def _new_epoch(self, loader: Any) -> tuple[_WeakPenstockLoaderView, WatchedEpoch] | None:
        try:
            view = self._views.get_or_add(loader, lambda number: _WeakPenstockLoaderView(loader, number))
            number, view.epochs = view.epochs, view.epochs + 1
            return view, WatchedEpoch(self._session, view.number, number, self._sampling[view.name])
        except Exception as error:
            self._session.fail(error)
            return None

    def _batch_requested(self, epoch: WatchedEpoch) -> None:
        """Begin a step, profiled or not."""
        profiled = not epoch.unprofiled_left
        if profiled == self._session.unprofiled:
            (self._phases.start_profiling if profiled else self._phases.stop_profiling)()
        epoch.batch_requested()
        if profiled:
            epoch.step_profiled()
        else:
            epoch.step_unprofiled()

    def _epoch_ended(self, epoch: WatchedEpoch, how: str) -> None:
        epoch.end(how)
        self._phases.resume(self._session._current)
