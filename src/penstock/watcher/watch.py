"""`penstock.watch(loader)`: iterate over it instead of the loader, and see where the time went."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

from penstock.errors import SettingError, printable
from penstock.watcher.active_session import active_session, publish_session
from penstock.watcher.loader_views import NOTHING, LoaderView, count_samples, view_of
from penstock.watcher.rank_files import own_recording
from penstock.watcher.script import autostart
from penstock.watcher.session import Sink, StepTracker
from penstock.watcher.sinks.terminal import LiveLines, stderr_is_terminal
from penstock.watcher.start import WatchedRun


def passing(
    track: StepTracker,
    side: LoaderView,
    make: Callable[[], Iterator[Any]],
    asked: Callable[[], None],
    ended: Callable[[str], None],
) -> Iterator[Any]:
    """What goes wrong in the watching is not the training's business.

    `make` gives the iterator, which belongs to the wait for the first batch. `asked` is told whenever the loop wants a
    batch, `ended` how the pass did: done, left or raised.
    """
    session, look, how = track._session, NOTHING, "left"
    try:
        if not session.off:
            with session.guard():
                asked()
        iterator = make()
        while True:
            if not session.off:
                with session.guard():
                    look = side.look(iterator)
            session.waiting = True
            try:
                batch = next(iterator)
            except StopIteration:
                how = "done"
                return
            finally:
                session.waiting = False
            if not session.off:
                with session.guard():
                    track.got(batch, look, side.parts(iterator))
            yield batch
            if not session.off:
                with session.guard():
                    asked()
    except GeneratorExit:
        raise
    except BaseException:
        how = "raised"
        raise
    finally:
        if not session.off:
            with session.guard():
                ended(how)


log = logging.getLogger("penstock")
T = TypeVar("T")

_asked_for: WeakKeyDictionary[WatchedRun, _Options] = WeakKeyDictionary()
"""Of those that a watch began: with what."""
_lock = threading.Lock()


def watch(
    loader: Iterable[T],
    *,
    record: str | Path | None = None,
    name: str = "",
    live: bool | None = None,
    slow_s: float | None = None,
    window: int | None = None,
    sinks: Sequence[Sink] = (),
) -> Watch[T]:
    """Watch any iterable of batches; a torch DataLoader shows its workers too, a penstock.Loader its hops.

    `record` writes all that is seen to a file for `penstock diagnose`. `live` prints a line per window and per slow
    batch to stderr; by default when that is a terminal. A batch is slow beyond `slow_s`, or when it is far out of the
    run's own range. Loaders watched while another watch is open are recorded together with it, as that one asked for.
    With nobody to tell, neither file nor terminal nor sink, nothing is watched.
    """
    return Watch(loader, name, _Options(record, live, slow_s, window, tuple(sinks)))


@dataclass(frozen=True, slots=True)
class _Options:
    record: str | Path | None
    live: bool | None
    slow_s: float | None
    window: int | None
    sinks: tuple[Sink, ...]

    def all_sinks(self) -> list[Sink]:
        mine: list[Sink] = list(self.sinks)
        if stderr_is_terminal() if self.live is None else self.live:
            mine.append(LiveLines(window=self.window, slow_s=self.slow_s))
        return mine

    def beyond(self, other: _Options) -> list[str]:
        """What is asked for here and is not there."""
        plain = ("live", "slow_s", "window")
        more = [name for name in plain if (mine := getattr(self, name)) is not None and mine != getattr(other, name)]
        if self.record is not None and str(self.record) != str(other.record):
            more.insert(0, "record")
        return more if set(map(id, self.sinks)) <= set(map(id, other.sinks)) else [*more, "sinks"]


_NO_OPTIONS = _Options(None, None, None, None, ())


class Watch(Generic[T]):
    """Stands where the loader stood; whatever is not ours is asked of the loader."""

    def __init__(self, loader: Iterable[T], name: str, options: _Options) -> None:
        self._loader = loader
        self._watching, self._owner = _join(options)
        self.session = self._watching.session
        number = self.session.number()
        self._side: LoaderView = view_of(loader, number, name, self._watching.worker_files, self.session.began)
        self._number = number
        self._passes = 0
        with self.session.guard():
            self.session.put(self._side.describe())
        self._watching.sides.append(self._side)

    def __iter__(self) -> Iterator[T]:
        number = self._passes
        self._passes += 1
        if self.session.off:
            return iter(self._loader)
        return _watched(self._watching, self._side, self._number, number)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the loader itself: the recording is of this one."""
        return _unwatched, (self._loader,)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """`with watch.phase("forward"):` counts a part of the step by name; phases may lie in one another."""
        return self.session.phase(name)

    def close(self) -> None:
        """End the recording, if this watch began it. Also happens when the interpreter ends."""
        self._close(0, "done")

    def _close(self, exit_code: int, how: str) -> None:
        if self._owner:
            self._owner = False
            self._watching.close(exit_code, how)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close(0, "done")
        elif issubclass(kind, KeyboardInterrupt):
            self._close(130, "interrupted")
        else:
            self._close(1, "raised")


def _unwatched(loader: T) -> T:
    return loader


def _join(options: _Options) -> tuple[WatchedRun, bool]:
    """The open one, or a new one and whether it is the caller's to close."""
    if "torch" in sys.modules and not autostart.in_dataloader_worker():
        autostart.start_recording()
    with _lock:
        joined = active_session()
        if joined is None:
            watching = WatchedRun(own_recording(options.record), options.all_sinks())
            if not watching.idle:
                publish_session(watching)
                _asked_for[watching] = options
            return watching, True
        _refuse(options, joined)
        return joined, False


def _refuse(options: _Options, joined: WatchedRun) -> None:
    """What a watch asks for and cannot have; where `penstock run` watches the script must go on all the same."""
    theirs = _asked_for.get(joined)
    more = options.beyond(theirs or _NO_OPTIONS)
    if not more:
        return
    where = "" if joined.record is None else f", recorded to {printable(str(joined.record))}"
    told = f"this process is being watched already{where}: {', '.join(more)} cannot be set now"
    if theirs is None:
        log.warning("%s", told)
    else:
        raise SettingError(told, advice="Close the other watch first, or leave that out: loaders are recorded together")


def _watched(watching: WatchedRun, side: LoaderView, loader: int, number: int) -> Iterator[Any]:
    """A pass begins when its first batch is asked for."""
    try:
        track = watching.session.begin(loader, number, count_samples)
    except Exception as error:
        watching.session.fail(error)
        yield from side.iterator(number)
    else:
        yield from passing(track, side, lambda: side.iterator(number), track.asked, track.ended)
