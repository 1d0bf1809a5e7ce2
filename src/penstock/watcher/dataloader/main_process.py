"""torch's DataLoader: how it is set, what its workers do, what has arrived when the loop asks.

Nothing here changes what the training gets. torch's internals are asked for by name and may be missing: with another
version of torch a number is None.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.recording.format import AnyLine, Event, Fetch, Loader, Whereabouts
from penstock.watcher.dataloader.fetch_timer import Meter, count, stamps
from penstock.watcher.dataloader.settings import batches, dataset_size, qualified_name, settings
from penstock.watcher.dataloader.wait_timers import TimedPoll, TimedSampler, time_wait
from penstock.watcher.dataloader.worker_files import Spool
from penstock.watcher.dataloader.worker_process import Telemetry
from penstock.watcher.loader_views import NOTHING, Look, Parts
from penstock.watcher.script.cli_settings import asked_for
from penstock.watcher.stack_sampler import Sampler, Seen


def describe(loader: Any, number: int, name: str = "", requested: Mapping[str, Any] | None = None) -> Loader:
    """Its settings as in force, beside those that were asked for where the caller knows them."""
    return Loader(
        loader=number,
        name=name,
        type="torch",
        settings=settings(loader, asked_for(sys.argv[1:]) if requested is None else requested),
        dataset=qualified_name(type(loader.dataset)),
        dataset_size=dataset_size(loader),
        batches=batches(loader),
    )


def make_iterator(
    loader: Any,
    number: int,
    pass_number: int,
    spool: Spool,
    began: float,
    make: Callable[[Any], Iterator[Any]] = iter,
) -> Iterator[Any]:
    """What `make(loader)` gives, with its fetches timed: in its workers, or here where there are none.

    The timing travels to new workers as their worker_init_fn, which is the user's own again before this returns.
    Persistent workers that exist already are timed since they were started.
    """
    made_s = time.perf_counter() - began
    spool.began(number, pass_number, made_s)
    if getattr(loader, "num_workers", 0) == 0:
        iterator = make(loader)
        _guarded(spool, made_s, lambda: _time_here(iterator, number, pass_number, spool, began))
    elif getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is not None:
        iterator = make(loader)
    else:
        init_fn = loader.worker_init_fn

        def time_workers() -> None:
            loader.worker_init_fn = Telemetry(
                folder=str(spool.folder),
                loader=number,
                pass_number=pass_number,
                began=began,
                made_s=made_s,
                in_order=getattr(loader, "in_order", True),
                iterable=_is_iterable(loader),
                init_fn=init_fn,
            )

        _guarded(spool, made_s, time_workers)
        try:
            iterator = make(loader)
        finally:
            loader.worker_init_fn = init_fn
    _guarded(spool, made_s, lambda: time_wait(iterator))
    return iterator


def look(iterator: Any) -> Look:
    """How it stands before the loop asks: ready batches (this one included), outstanding ones, whose turn it is."""
    try:
        tasks, workers = iterator._task_info, iterator._workers_status
        if all(workers):
            known = len(tasks) - iterator._tasks_outstanding  # arrived before their turn
            outstanding = len(tasks)
            task = tasks.get(iterator._rcvd_idx) if getattr(iterator, "_in_order", True) else None
            worker = None if task is None else task[0]
        else:  # the tasks of workers that have ended come to nothing
            known = sum(len(task) == 2 for task in tasks.values())
            outstanding = sum(len(task) == 2 or workers[task[0]] for task in tasks.values())
            worker = _awaited(iterator, tasks, workers)
        try:  # with those in the queue to the loop: pinned already, where memory is pinned
            ready = known + iterator._data_queue.qsize()
        except NotImplementedError:  # macOS does not count
            ready = None
        return Look(ready, outstanding, worker)
    except AttributeError:  # no workers, or another torch
        return Look(worker=-1) if hasattr(iterator, "_dataset_fetcher") else NOTHING


def worker_pids(iterator: Any) -> dict[int, int]:
    """Process → worker."""
    return {process.pid: worker for worker, process in enumerate(getattr(iterator, "_workers", ()))}


def take_parts(iterator: Any) -> Parts:
    """Of the wait that has just ended. What is drawn ahead when a pass begins is not counted."""
    sampler = getattr(iterator, "_sampler_iter", None)
    poll = getattr(getattr(iterator, "_data_queue", None), "_poll", None)
    sampler_s, idle_s = 0.0, None
    if type(sampler) is TimedSampler:
        sampler_s, sampler.seconds = sampler.seconds, 0.0
    if type(poll) is TimedPoll:
        idle_s, poll.seconds = poll.seconds, 0.0
    return Parts(sampler_s, idle_s)


def _awaited(iterator: Any, tasks: Mapping[int, Any], workers: list[bool]) -> int | None:
    """Whose batch comes next; None where that is whoever is first."""
    if not getattr(iterator, "_in_order", True):
        return None
    for number in range(iterator._rcvd_idx, iterator._send_idx):
        task = tasks.get(number)
        if task is not None and (len(task) == 2 or workers[task[0]]):
            return int(task[0])
    return None


def _is_iterable(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def _guarded(spool: Spool, at_s: float, timing: Callable[[], None]) -> None:
    """An iterator that cannot be timed is still the user's iterator."""
    try:
        timing()
    except Exception as error:
        detail = {"error": f"{type(error).__name__}: {error}"}
        spool.put(Event(what="watcher_failed", at_s=at_s, detail=detail))


def _time_here(iterator: Any, number: int, pass_number: int, spool: Spool, began: float) -> None:
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is not None:
        iterator._dataset_fetcher = _TimedFetcher(fetcher, number, pass_number, spool, began)


class _TimedFetcher:
    """The fetcher of a loader without workers: its batches are made in the loop's own thread."""

    def __init__(self, fetcher: Any, number: int, pass_number: int, spool: Spool, began: float) -> None:
        self._fetcher = fetcher
        self._loader = number
        self._pass = pass_number
        self._spool = spool
        self._began = began
        self._batch = 0
        self._off = False
        sampler = Sampler(threading.get_native_id(), threading.get_ident(), self._put_whereabouts)
        self._meter = Meter(fetcher.dataset, sampler)
        kind = type(fetcher)
        self._iterable = hasattr(fetcher, "dataset_iter")
        fetcher.__class__ = type(kind.__name__, (kind,), stamps(kind, self._meter))

    def fetch(self, index: Any) -> Any:
        """As torch's own; an error passes through, and its batch has no line."""
        self._guarded(self._meter.begin)
        try:
            data = self._fetcher.fetch(index)
        except BaseException:
            self._meter.sampler.pause()
            raise
        self._guarded(lambda: self._put_fetch(index))
        return data

    def __getattr__(self, name: str) -> Any:
        """What else somebody wants to know of it: torchdata's loader asks for the dataset's own iterator."""
        return getattr(self._fetcher, name)

    def _guarded(self, timing: Callable[[], None]) -> None:
        if not self._off:
            try:
                timing()
            except Exception as error:
                self._off = True
                detail = {"error": f"{type(error).__name__}: {error}"}
                self._spool.put(Event(what="watcher_failed", at_s=self._now(), detail=detail))

    def _put_fetch(self, index: Any) -> None:
        numbers: dict[str, Any] = self._meter.end(count(index, iterable=self._iterable))
        at_s = self._meter.began_at - self._began
        self._spool.put(
            Fetch(loader=self._loader, pass_=self._pass, batch=self._batch, worker=-1, at_s=at_s, **numbers)
        )
        self._batch += 1

    def _put_whereabouts(self, seen: Seen) -> None:
        self._spool.put(
            Whereabouts(
                loader=self._loader,
                worker=-1,
                at_s=self._now(),
                looks=seen.looks,
                states=dict(seen.states),
                functions=seen.top_functions(),
            )
        )

    def _now(self) -> float:
        return time.perf_counter() - self._began


class TorchSide:
    """Joins the pieces of `torchloader` for one loader."""

    def __init__(self, loader: Any, number: int, name: str, spool: Spool, began: float) -> None:
        self.loader = loader
        self.number = number
        self.name = name
        self._spool = spool
        self._began = began
        self._pids: dict[int, int] = {}

    def describe(self) -> Loader:
        """Settings as requested and as in force."""
        return describe(self.loader, self.number, self.name)

    def iterator(self, number: int) -> Iterator[Any]:
        """torch's own, with a stopwatch in its workers."""
        return self._timed(self.loader, number, iter)

    def _timed(self, loader: Any, number: int, make: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        iterator = make_iterator(loader, self.number, number, self._spool, self._began, make)
        self._pids = worker_pids(iterator)
        return iterator

    def look(self, iterator: Iterator[Any]) -> Look:
        """What has arrived, what is outstanding, whose turn it is."""
        return look(iterator)

    def parts(self, iterator: Iterator[Any]) -> Parts:
        """Drawing the next indices happens inside the wait."""
        return take_parts(iterator)

    def processes(self) -> dict[int, int]:
        """Of the pass under way."""
        return self._pids

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Workers write to the spool, which is drained for all loaders together."""
        return ()
