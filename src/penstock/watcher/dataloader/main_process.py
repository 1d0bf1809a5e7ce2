"""torch's DataLoader: how it is set, what its workers do, what has arrived when the loop asks.

Nothing here changes what the training gets. torch's internals are asked for by name and may be missing: with another
version of torch a number is None.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Queue
from typing import Any, NamedTuple

from penstock.recording.format import AnyLine, EventLine, FetchLine, LoaderLine, StackSamplesLine
from penstock.watcher.dataloader.fetch_timer import FetchTimer, requested_samples, timed_attributes
from penstock.watcher.dataloader.settings import (
    batches_per_epoch,
    command_line_settings,
    dataset_size,
    loader_settings,
    qualified_name,
)
from penstock.watcher.dataloader.worker_files import WorkerFiles
from penstock.watcher.dataloader.worker_process import WorkerTelemetry
from penstock.watcher.loader_views import NOTHING, LoaderState, WaitParts
from penstock.watcher.stack_sampler import StackCounts, StackSampler


def install_wait_timers(iterator: Any) -> None:
    """Stopwatches around what a wait consists of: drawing indices, and waiting for a batch to arrive."""
    _time_sampler(iterator)
    _time_poll(iterator)


def remove_wait_timers(iterator: Any) -> None:
    """Without them, until they are put in again: each costs a call."""
    sampler, queue = getattr(iterator, "_sampler_iter", None), getattr(iterator, "_data_queue", None)
    poll = getattr(queue, "_poll", None)
    if type(sampler) is TimedSamplerIterator:
        iterator._sampler_iter = sampler.inner
    if type(poll) is TimedQueuePoll:
        queue._poll = poll.inner  # type: ignore[union-attr]


class QueueCounter(NamedTuple):
    """How many batches lie in the queue to the loop: base + sign × asked(), without a call of Python code."""

    base: int
    sign: int
    read: Callable[[], int]


def queue_counter(iterator: Any) -> QueueCounter | None:
    """None where `look` has to be asked: without workers, out of order, with another torch, on macOS."""
    queue = getattr(iterator, "_data_queue", None)
    try:
        if not getattr(iterator, "_in_order", True):
            return None
        if isinstance(queue, Queue):  # of the thread that pins
            return QueueCounter(0, 1, queue.queue.__len__)
        free: Callable[[], int] = queue._sem._semlock._get_value  # type: ignore[union-attr]
        free()
        return QueueCounter(queue._maxsize, -1, free)  # type: ignore[union-attr]
    except (AttributeError, NotImplementedError):
        return None


def _time_sampler(iterator: Any) -> None:
    sampler = getattr(iterator, "_sampler_iter", None)
    ours = type(sampler) is TimedSamplerIterator
    if sampler is not None and not ours and type(iterator).__module__ == "torch.utils.data.dataloader":
        iterator._sampler_iter = TimedSamplerIterator(sampler)


def _time_poll(iterator: Any) -> None:
    """The queue of the workers' batches; not that of a thread which pins them."""
    queue = getattr(iterator, "_data_queue", None)
    poll = getattr(queue, "_poll", None)
    if poll is not None and not isinstance(poll, TimedQueuePoll):
        queue._poll = TimedQueuePoll(poll)  # type: ignore[union-attr]


class TimedQueuePoll:
    """A queue's wait for its next message."""

    def __init__(self, poll: Callable[..., bool]) -> None:
        self.seconds = 0.0
        self.inner = poll

    def __call__(self, *args: Any) -> bool:
        """As the queue's own."""
        began = time.perf_counter()
        try:
            return self.inner(*args)
        finally:
            self.seconds += time.perf_counter() - began


class TimedSamplerIterator:
    """A sampler's iterator and the time it takes."""

    def __init__(self, sampler: Iterator[Any]) -> None:
        self.seconds = 0.0
        self.inner = sampler

    def __iter__(self) -> TimedSamplerIterator:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        try:
            return next(self.inner)
        finally:
            self.seconds += time.perf_counter() - began


def describe(loader: Any, number: int, name: str = "", requested: Mapping[str, Any] | None = None) -> LoaderLine:
    """Its settings as in force, beside those that were asked for where the caller knows them."""
    return LoaderLine(
        loader=number,
        name=name,
        type="torch",
        settings=loader_settings(loader, command_line_settings(sys.argv[1:]) if requested is None else requested),
        dataset=qualified_name(type(loader.dataset)),
        dataset_size=dataset_size(loader),
        batches=batches_per_epoch(loader),
    )


def make_iterator(
    loader: Any,
    number: int,
    epoch: int,
    worker_files: WorkerFiles,
    clock_start: float,
    make: Callable[[Any], Iterator[Any]] = iter,
) -> Iterator[Any]:
    """What `make(loader)` gives, with its fetches timed: in its workers, or here where there are none.

    The timing travels to new workers as their worker_init_fn, which is the user's own again before this returns.
    Persistent workers that exist already are timed since they were started.
    """
    made_s = time.perf_counter() - clock_start
    worker_files.epoch_started(number, epoch, made_s)
    if getattr(loader, "num_workers", 0) == 0:
        iterator = make(loader)
        _or_report(worker_files, made_s, lambda: _time_fetcher(iterator, number, epoch, worker_files, clock_start))
    elif getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is not None:
        iterator = make(loader)
    else:
        init_fn = loader.worker_init_fn

        def time_workers() -> None:
            loader.worker_init_fn = WorkerTelemetry(
                folder=str(worker_files.folder),
                loader=number,
                epoch=epoch,
                clock_start=clock_start,
                workers_started_s=made_s,
                in_order=getattr(loader, "in_order", True),
                iterable=_is_iterable(loader),
                init_fn=init_fn,
            )

        _or_report(worker_files, made_s, time_workers)
        try:
            iterator = make(loader)
        finally:
            loader.worker_init_fn = init_fn
    _or_report(worker_files, made_s, lambda: install_wait_timers(iterator))
    return iterator


def queue_state(iterator: Any) -> LoaderState:
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
            worker = _awaited_worker(iterator, tasks, workers)
        try:  # with those in the queue to the loop: pinned already, where memory is pinned
            ready = known + iterator._data_queue.qsize()
        except NotImplementedError:  # macOS does not count
            ready = None
        return LoaderState(ready, outstanding, worker)
    except AttributeError:  # no workers, or another torch
        return LoaderState(worker=-1) if hasattr(iterator, "_dataset_fetcher") else NOTHING


def worker_pids(iterator: Any) -> dict[int, int]:
    """Process → worker."""
    return {process.pid: worker for worker, process in enumerate(getattr(iterator, "_workers", ()))}


def take_wait_parts(iterator: Any) -> WaitParts:
    """Of the wait that has just ended. What is drawn ahead when a pass begins is not counted."""
    sampler = getattr(iterator, "_sampler_iter", None)
    poll = getattr(getattr(iterator, "_data_queue", None), "_poll", None)
    sampler_s, idle_s = 0.0, None
    if type(sampler) is TimedSamplerIterator:
        sampler_s, sampler.seconds = sampler.seconds, 0.0
    if type(poll) is TimedQueuePoll:
        idle_s, poll.seconds = poll.seconds, 0.0
    return WaitParts(sampler_s, idle_s)


def _awaited_worker(iterator: Any, tasks: Mapping[int, Any], workers: list[bool]) -> int | None:
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


def _or_report(worker_files: WorkerFiles, at_s: float, install: Callable[[], None]) -> None:
    """An iterator that cannot be timed is still the user's iterator."""
    try:
        install()
    except Exception as error:
        detail = {"error": f"{type(error).__name__}: {error}"}
        worker_files.put(EventLine(what="watcher_failed", at_s=at_s, detail=detail))


def _time_fetcher(iterator: Any, number: int, epoch: int, worker_files: WorkerFiles, clock_start: float) -> None:
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is not None:
        iterator._dataset_fetcher = _TimedFetcher(fetcher, number, epoch, worker_files, clock_start)


class _TimedFetcher:
    """The fetcher of a loader without workers: its batches are made in the loop's own thread."""

    def __init__(self, fetcher: Any, number: int, epoch: int, worker_files: WorkerFiles, clock_start: float) -> None:
        self._fetcher = fetcher
        self._loader = number
        self._epoch = epoch
        self._worker_files = worker_files
        self._clock_start = clock_start
        self._batch = 0
        self._disabled = False
        sampler = StackSampler(threading.get_native_id(), threading.get_ident(), self._put_stack_samples)
        self._timer = FetchTimer(fetcher.dataset, sampler)
        kind = type(fetcher)
        self._iterable = hasattr(fetcher, "dataset_iter")
        fetcher.__class__ = type(kind.__name__, (kind,), timed_attributes(kind, self._timer))

    def fetch(self, index: Any) -> Any:
        """As torch's own; an error passes through, and its batch has no line."""
        self._guarded(self._timer.start)
        try:
            data = self._fetcher.fetch(index)
        except BaseException:
            self._timer.sampler.pause()
            raise
        self._guarded(lambda: self._put_fetch(index))
        return data

    def __getattr__(self, name: str) -> Any:
        """What else somebody wants to know of it: torchdata's loader asks for the dataset's own iterator."""
        return getattr(self._fetcher, name)

    def _guarded(self, timing: Callable[[], None]) -> None:
        if not self._disabled:
            try:
                timing()
            except Exception as error:
                self._disabled = True
                detail = {"error": f"{type(error).__name__}: {error}"}
                self._worker_files.put(EventLine(what="watcher_failed", at_s=self._now(), detail=detail))

    def _put_fetch(self, index: Any) -> None:
        numbers: dict[str, Any] = self._timer.finish(requested_samples(index, iterable=self._iterable))
        at_s = self._timer.started_at - self._clock_start
        self._worker_files.put(
            FetchLine(loader=self._loader, epoch=self._epoch, batch=self._batch, worker=-1, at_s=at_s, **numbers)
        )
        self._batch += 1

    def _put_stack_samples(self, seen: StackCounts) -> None:
        self._worker_files.put(
            StackSamplesLine(
                loader=self._loader,
                worker=-1,
                at_s=self._now(),
                samples=seen.samples,
                states=dict(seen.states),
                functions=seen.top_functions(),
            )
        )

    def _now(self) -> float:
        return time.perf_counter() - self._clock_start


class TorchLoaderView:
    """Joins the pieces of `torchloader` for one loader."""

    def __init__(self, loader: Any, number: int, name: str, worker_files: WorkerFiles, clock_start: float) -> None:
        self.loader = loader
        self.number = number
        self.name = name
        self._worker_files = worker_files
        self._clock_start = clock_start
        self._pids: dict[int, int] = {}

    def describe(self) -> LoaderLine:
        """Settings as requested and as in force."""
        return describe(self.loader, self.number, self.name)

    def iterator(self, number: int) -> Iterator[Any]:
        """torch's own, with a stopwatch in its workers."""
        return self._make_iterator(self.loader, number, iter)

    def _make_iterator(self, loader: Any, number: int, make: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        iterator = make_iterator(loader, self.number, number, self._worker_files, self._clock_start, make)
        self._pids = worker_pids(iterator)
        return iterator

    def look(self, iterator: Iterator[Any]) -> LoaderState:
        """What has arrived, what is outstanding, whose turn it is."""
        return queue_state(iterator)

    def parts(self, iterator: Iterator[Any]) -> WaitParts:
        """Drawing the next indices happens inside the wait."""
        return take_wait_parts(iterator)

    def processes(self) -> dict[int, int]:
        """Of the pass under way."""
        return self._pids

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Workers write to the spool, which is drained for all loaders together."""
        return ()
