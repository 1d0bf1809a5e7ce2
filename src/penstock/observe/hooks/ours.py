"""Every penstock.Loader of the script: its passes are tracks, its hops are asked for by the housekeeping."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.observe.hooks.callers import asked_by_watch, iterated_name
from penstock.observe.hooks.forward import Forward
from penstock.observe.hooks.known import Known
from penstock.observe.hooks.patches import Patches
from penstock.observe.hooks.phases import Phases
from penstock.observe.loaders import OurSide, count_samples
from penstock.observe.session import Track
from penstock.observe.start import Watching
from penstock.recording.lines import AnyLine


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

    def __init__(self, watching: Watching, phases: Phases, forward: Forward) -> None:
        self._session = watching.session
        self._phases = phases
        self._forward = forward
        self._known: Known[_Met] = Known(watching)

    def install(self, patches: Patches) -> None:
        """If the script has any: the module is not imported for our sake."""
        module: Any = sys.modules.get("penstock.loader")
        if module is None:
            return
        make = module.Loader.__iter__

        def __iter__(loader: Any) -> Iterator[Any]:
            batches: Iterator[Any] = make(loader)
            if self._session.off or asked_by_watch():
                return batches
            track = self._begin(loader)
            return batches if track is None else self._watched(track, batches)

        patches.set(module.Loader, "__iter__", __iter__)

    def _begin(self, loader: Any) -> Track | None:
        try:
            side = self._known.side_of(loader, lambda number: _Met(loader, number))
            number, side.passes = side.passes, side.passes + 1
            return self._session.begin(side.number, number, count_samples)
        except Exception as error:
            self._session.fail(error)
            return None

    def _watched(self, track: Track, batches: Iterator[Any]) -> Iterator[Any]:
        session, phases, how = self._session, self._phases, "left"
        try:
            while True:
                if not session.off:
                    with session.guard():
                        track.asked()
                phases.waiting = True
                try:
                    batch = next(batches)
                except StopIteration:
                    how = "done"
                    return
                except BaseException:
                    how = "raised"
                    raise
                finally:
                    phases.waiting = False
                if not session.off:
                    with session.guard():
                        track.got(batch)
                        self._forward.step(track.batch)
                yield batch
        finally:
            if not session.off:
                with session.guard():
                    track.ended(how)
