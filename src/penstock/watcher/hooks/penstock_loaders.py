"""Every penstock.Loader of the script: its passes are tracks, its hops are asked for by the housekeeping."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from penstock.recording.format import AnyLine
from penstock.watcher.hooks.callers import asked_by_watch, iterated_name
from penstock.watcher.hooks.current_epoch import UnderWay
from penstock.watcher.hooks.loaders import Known
from penstock.watcher.hooks.patches import Patches
from penstock.watcher.hooks.phases import Phases
from penstock.watcher.loader_views import OurSide
from penstock.watcher.start import Watching
from penstock.watcher.step_sampling import Choice
from penstock.watcher.watch import passing


class _Met(OurSide):
    """A loader of the script's: known, but not kept alive."""

    def __init__(self, loader: Any, number: int) -> None:
        super().__init__(weakref.proxy(loader), number, iterated_name())
        self.passes = 0
        self._alive = weakref.ref(loader)

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Nothing, once it is gone."""
        loader = self._alive()
        return () if loader is None else super().poll(at_s)


class OurLoaders:
    """Stands at `iter`; what that gives is a generator, with us or without."""

    def __init__(self, watching: Watching, phases: Phases) -> None:
        self._session = watching.session
        self._phases = phases
        self._known: Known[_Met] = Known(watching)
        self._choices: defaultdict[str, Choice] = defaultdict(Choice)
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

    def _begin(self, loader: Any) -> tuple[_Met, UnderWay] | None:
        try:
            side = self._known.side_of(loader, lambda number: _Met(loader, number))
            number, side.passes = side.passes, side.passes + 1
            return side, UnderWay(self._session, side.number, number, self._choices[side.name])
        except Exception as error:
            self._session.fail(error)
            return None

    def _asked(self, track: UnderWay) -> None:
        """The step that begins is looked at, or it is not."""
        looked = not track.unlooked
        if looked == self._session.resting:
            (self._phases.look if looked else self._phases.rest)()
        track.asked()
        if looked:
            track.looks()
        else:
            track.passes()

    def _ended(self, track: UnderWay, how: str) -> None:
        track.ended(how)
        self._phases.back_to(self._session._current)
