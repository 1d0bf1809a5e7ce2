"""`penstock.watch(loader)`: an iterable that takes the place of a loader and records its waits and steps."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload
from weakref import WeakKeyDictionary

from penstock.errors import SettingError, printable
from penstock.watcher.active_session import active_session, publish_session
from penstock.watcher.batch_function import WatchedFunction
from penstock.watcher.loader_views import UNKNOWN_STATE, LoaderView, count_samples, view_of
from penstock.watcher.rank_files import own_recording
from penstock.watcher.script import autostart
from penstock.watcher.session import Sink, StepTracker
from penstock.watcher.sinks.terminal import LiveLines, stderr_is_terminal
from penstock.watcher.start import WatchedRun

log = logging.getLogger("penstock")
T = TypeVar("T")
P = ParamSpec("P")


def watched_batches(
    tracker: StepTracker,
    view: LoaderView,
    make_iterator: Callable[[], Iterator[Any]],
    on_request: Callable[[], None],
    on_end: Callable[[str], None],
) -> Iterator[Any]:
    """Yield the batches of a loader and note each request and arrival; errors of the watcher do not reach the loop.

    `make_iterator` is called within the wait for the first batch. `on_request` is called whenever the training loop
    requests a batch, `on_end` once with how the epoch ended: done, left or raised.
    """
    session, loader_state, how = tracker._session, UNKNOWN_STATE, "left"
    try:
        if not session.off:
            with session.guard():
                on_request()
        iterator = make_iterator()
        while True:
            if not session.off:
                with session.guard():
                    loader_state = view.state(iterator)
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
                    tracker.batch_received(batch, loader_state, view.wait_parts(iterator))
            yield batch
            if not session.off:
                with session.guard():
                    on_request()
    except GeneratorExit:
        raise
    except BaseException:
        how = "raised"
        raise
    finally:
        if not session.off:
            with session.guard():
                on_end(how)


_options_of_runs: WeakKeyDictionary[WatchedRun, _Options] = WeakKeyDictionary()
"""The options of the runs that a `Watch` began; runs of `penstock run` are not in here."""
_lock = threading.Lock()


@overload
def watch(
    loader: Iterable[T],
    *,
    record: str | Path | None = None,
    name: str = "",
    live: bool | None = None,
    slow_s: float | None = None,
    window: int | None = None,
    sinks: Sequence[Sink] = (),
) -> Watch[T]: ...


@overload
def watch(
    loader: Callable[P, T],
    *,
    record: str | Path | None = None,
    name: str = "",
    live: bool | None = None,
    slow_s: float | None = None,
    window: int | None = None,
    sinks: Sequence[Sink] = (),
) -> WatchedFunction[P, T]: ...


def watch(
    loader: Any,
    *,
    record: str | Path | None = None,
    name: str = "",
    live: bool | None = None,
    slow_s: float | None = None,
    window: int | None = None,
    sinks: Sequence[Sink] = (),
) -> Any:
    """Watch any iterable of batches; a torch DataLoader shows its workers too, a penstock.Loader its hops.

    A function that draws one batch per call can be watched too. The result is called in its place, and calls without
    gradients count as an evaluation.

    `record` is a file to write the recording to, for `penstock diagnose`. `live` prints one line per window and per
    slow batch to stderr; the default is to print if stderr is a terminal. `slow_s` is the wait in seconds above which a
    batch is slow; by default, a batch is slow if its wait is far out of the run's own range. `window` is the number of
    batches in a window. `sinks` receive all lines of the recording.

    Loaders that are watched while another watch is open are recorded together with it, with the options of the first.
    Without a file, a terminal and a sink, nothing is watched.
    """
    options = _Options(record, live, slow_s, window, tuple(sinks))
    if callable(loader) and not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        return WatchedFunction(loader, name, _join_or_begin(options)[0])
    return Watch(loader, name, options)


@dataclass(frozen=True, slots=True)
class _Options:
    """The arguments of `watch` that belong to the whole run."""

    record: str | Path | None
    live: bool | None
    slow_s: float | None
    window: int | None
    sinks: tuple[Sink, ...]

    def all_sinks(self) -> list[Sink]:
        all_sinks: list[Sink] = list(self.sinks)
        if stderr_is_terminal() if self.live is None else self.live:
            all_sinks.append(LiveLines(window=self.window, slow_s=self.slow_s))
        return all_sinks

    def missing_in(self, other: _Options) -> list[str]:
        """Return the names of the options that are set here and differ in `other`."""
        names = [
            name
            for name in ("live", "slow_s", "window")
            if (value := getattr(self, name)) is not None and value != getattr(other, name)
        ]
        if self.record is not None and str(self.record) != str(other.record):
            names.insert(0, "record")
        return names if set(map(id, self.sinks)) <= set(map(id, other.sinks)) else [*names, "sinks"]


_NO_OPTIONS = _Options(None, None, None, None, ())


class Watch(Generic[T]):
    """A watched loader. It is iterated over instead of the loader, and passes unknown attributes on to it."""

    def __init__(self, loader: Iterable[T], name: str, options: _Options) -> None:
        self._loader = loader
        self._run, self._owns_run = _join_or_begin(options)
        self.session = self._run.session
        self._number = self.session.new_loader_number()
        self._view = view_of(loader, self._number, name, self._run.worker_files, self.session.clock_start)
        self._epochs = 0
        with self.session.guard():
            self.session.put(self._view.describe())
        self._run.loader_views.append(self._view)

    def __iter__(self) -> Iterator[T]:
        epoch = self._epochs
        self._epochs += 1
        if self.session.off:
            return iter(self._loader)
        return _watched_epoch(self._run, self._view, self._number, epoch)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the loader itself, because only this process is recorded."""
        return _unwatched, (self._loader,)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """`with watch.phase("forward"):` records the time of a part of the step. Phases may be nested."""
        return self.session.phase(name)

    def close(self) -> None:
        """End the recording if this watch began it. This also happens when the interpreter exits."""
        self._close(0, "done")

    def _close(self, exit_code: int, how: str) -> None:
        if self._owns_run:
            self._owns_run = False
            self._run.close(exit_code, how)

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


def _join_or_begin(options: _Options) -> tuple[WatchedRun, bool]:
    """Return the run that is open in this process, or begin one; and whether the caller owns it and must close it."""
    if "torch" in sys.modules and not autostart.in_dataloader_worker():
        autostart.start_recording()
    with _lock:
        run = active_session()
        if run is None:
            run = WatchedRun(own_recording(options.record), options.all_sinks())
            if not run.idle:
                publish_session(run)
                _options_of_runs[run] = options
            return run, True
        _check_options(options, run)
        return run, False


def _check_options(options: _Options, run: WatchedRun) -> None:
    """Raise SettingError if the open run does not have these options.

    If `penstock run` began the run, only warn, because the script must go on.
    """
    run_options = _options_of_runs.get(run)
    missing = options.missing_in(run_options or _NO_OPTIONS)
    if not missing:
        return
    where = "" if run.record is None else f", recorded to {printable(str(run.record))}"
    message = f"this process is being watched already{where}: {', '.join(missing)} cannot be set now"
    if run_options is None:
        log.warning("%s", message)
    else:
        raise SettingError(
            message, advice="Close the other watch first, or leave that out: loaders are recorded together"
        )


def _watched_epoch(run: WatchedRun, view: LoaderView, loader: int, epoch: int) -> Iterator[Any]:
    """Yield the batches of one epoch, which begins when the first of them is requested."""
    try:
        tracker = run.session.begin_epoch(loader, epoch, count_samples)
    except Exception as error:
        run.session.fail(error)
        yield from view.iterator(epoch)
    else:
        yield from watched_batches(tracker, view, lambda: view.iterator(epoch), tracker.batch_requested, tracker.end)
