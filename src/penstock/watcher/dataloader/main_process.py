"""Watches torch's DataLoader from the main process: its settings, its workers, and the batches that have arrived.

None of this changes which batches the training gets, or their order. Private attributes of torch are read by name; if
another version of torch does not have one, the number that depends on it is None.
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
from penstock.watcher.loader_views import UNKNOWN_STATE, LoaderState, WaitParts
from penstock.watcher.stack_sampler import StackCounts, StackSampler


def install_wait_timers(iterator: Any) -> None:
    """Time the two parts of a wait for a batch: drawing indices, and waiting until a batch begins to arrive."""
    _time_sampler(iterator)
    _time_poll(iterator)


def remove_wait_timers(iterator: Any) -> None:
    """Take the timers out until `install_wait_timers` is called again, because each costs a function call per step."""
    sampler, queue = getattr(iterator, "_sampler_iter", None), getattr(iterator, "_data_queue", None)
    poll = getattr(queue, "_poll", None)
    if type(sampler) is TimedSamplerIterator:
        iterator._sampler_iter = sampler.inner
    if type(poll) is TimedQueuePoll:
        queue._poll = poll.inner  # type: ignore[union-attr]


class QueueCounter(NamedTuple):
    """Counts the batches in the queue to the training loop, as base + sign * read(), where `read` is a C function."""

    base: int
    sign: int
    read: Callable[[], int]


def queue_counter(iterator: Any) -> QueueCounter | None:
    """Return the counter of an iterator's queue; None if only `queue_state` can count.

    That is so without workers, without `in_order`, on macOS, and with a version of torch that has other attributes.
    """
    queue = getattr(iterator, "_data_queue", None)
    try:
        if not getattr(iterator, "_in_order", True):
            return None
        if isinstance(queue, Queue):  # batches are pinned: a thread of torch moves them into this queue
            return QueueCounter(0, 1, queue.queue.__len__)
        free_places: Callable[[], int] = queue._sem._semlock._get_value  # type: ignore[union-attr]
        free_places()
        return QueueCounter(queue._maxsize, -1, free_places)  # type: ignore[union-attr]
    except (AttributeError, NotImplementedError):
        return None


def _time_sampler(iterator: Any) -> None:
    sampler = getattr(iterator, "_sampler_iter", None)
    timed = type(sampler) is TimedSamplerIterator
    if sampler is not None and not timed and type(iterator).__module__ == "torch.utils.data.dataloader":
        iterator._sampler_iter = TimedSamplerIterator(sampler)


def _time_poll(iterator: Any) -> None:
    """Time the polls of the queue to which workers send batches. The queue of a thread that pins them has none."""
    queue = getattr(iterator, "_data_queue", None)
    poll = getattr(queue, "_poll", None)
    if poll is not None and not isinstance(poll, TimedQueuePoll):
        queue._poll = TimedQueuePoll(poll)  # type: ignore[union-attr]


class TimedQueuePoll:
    """A timer around a queue's `_poll`, which waits for the next message."""

    def __init__(self, poll: Callable[..., bool]) -> None:
        self.seconds = 0.0
        """Seconds waited since `take_wait_parts` last reset it."""
        self.inner = poll

    def __call__(self, *args: Any) -> bool:
        """Return the result of the queue's own function."""
        began = time.perf_counter()
        try:
            return self.inner(*args)
        finally:
            self.seconds += time.perf_counter() - began


class TimedSamplerIterator:
    """A timer around a sampler's iterator."""

    def __init__(self, sampler: Iterator[Any]) -> None:
        self.seconds = 0.0
        """Seconds in the sampler since `take_wait_parts` last reset it."""
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
    """Return the line that describes a loader. `requested` holds settings; by default those of the command line."""
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
    """Return `make(loader)` with its fetches timed: in its workers, or in this thread if it has none.

    1. Without workers, the iterator's fetcher is wrapped.
    2. Persistent workers that exist already have been timed since they were started.
    3. New workers get a WorkerTelemetry as their `worker_init_fn`. The loader has the user's own again when this
       function returns.

    `clock_start` is the start of the run, as time.perf_counter.
    """
    now_s = time.perf_counter() - clock_start
    worker_files.epoch_started(number, epoch, now_s)
    if getattr(loader, "num_workers", 0) == 0:
        iterator = make(loader)
        _try_or_report(worker_files, now_s, lambda: _time_fetcher(iterator, number, epoch, worker_files, clock_start))
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
                workers_started_s=now_s,
                in_order=getattr(loader, "in_order", True),
                iterable=_is_iterable(loader),
                init_fn=init_fn,
            )

        _try_or_report(worker_files, now_s, time_workers)
        try:
            iterator = make(loader)
        finally:
            loader.worker_init_fn = init_fn
    _try_or_report(worker_files, now_s, lambda: install_wait_timers(iterator))
    return iterator


def queue_state(iterator: Any) -> LoaderState:
    """Return how many batches are ready and outstanding before the next one is requested, and which worker makes it."""
    try:
        tasks, workers_active = iterator._task_info, iterator._workers_status
        if all(workers_active):
            received = len(tasks) - iterator._tasks_outstanding  # arrived before their turn
            outstanding = len(tasks)
            task = tasks.get(iterator._rcvd_idx) if getattr(iterator, "_in_order", True) else None
            worker = None if task is None else task[0]
        else:  # tasks of workers that have ended give no batches
            received = sum(len(task) == 2 for task in tasks.values())
            outstanding = sum(len(task) == 2 or workers_active[task[0]] for task in tasks.values())
            worker = _next_worker(iterator, tasks, workers_active)
        try:  # the queue to the training loop; its batches are pinned already if the loader pins memory
            ready = received + iterator._data_queue.qsize()
        except NotImplementedError:  # on macOS
            ready = None
        return LoaderState(ready, outstanding, worker)
    except AttributeError:  # no workers, or a version of torch with other attributes
        return LoaderState(worker=-1) if hasattr(iterator, "_dataset_fetcher") else UNKNOWN_STATE


def worker_pids(iterator: Any) -> dict[int, int]:
    """Return process id → worker number."""
    return {process.pid: worker for worker, process in enumerate(getattr(iterator, "_workers", ()))}


def take_wait_parts(iterator: Any) -> WaitParts:
    """Return the parts of the wait that has just ended, and set the timers to zero.

    The indices that torch draws when an epoch begins, to fill the prefetch queues, are not counted.
    """
    sampler = getattr(iterator, "_sampler_iter", None)
    poll = getattr(getattr(iterator, "_data_queue", None), "_poll", None)
    sampler_s, idle_s = 0.0, None
    if type(sampler) is TimedSamplerIterator:
        sampler_s, sampler.seconds = sampler.seconds, 0.0
    if type(poll) is TimedQueuePoll:
        idle_s, poll.seconds = poll.seconds, 0.0
    return WaitParts(sampler_s, idle_s)


def _next_worker(iterator: Any, tasks: Mapping[int, Any], workers_active: list[bool]) -> int | None:
    """Return the worker whose batch comes next; None if the order of batches is not fixed, or none is to come."""
    if not getattr(iterator, "_in_order", True):
        return None
    for number in range(iterator._rcvd_idx, iterator._send_idx):
        task = tasks.get(number)
        if task is not None and (len(task) == 2 or workers_active[task[0]]):
            return int(task[0])
    return None


def _is_iterable(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def _try_or_report(worker_files: WorkerFiles, at_s: float, install: Callable[[], None]) -> None:
    """Call `install`, and record an error instead of raising it: the script can use the iterator without the timers."""
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
    """A timer around the fetcher of a loader without workers, which makes batches in the training loop's thread."""

    def __init__(self, fetcher: Any, number: int, epoch: int, worker_files: WorkerFiles, clock_start: float) -> None:
        self._fetcher = fetcher
        self._loader = number
        self._epoch = epoch
        self._worker_files = worker_files
        self._clock_start = clock_start
        self._batch = 0
        self._disabled = False
        stack_sampler = StackSampler(threading.get_native_id(), threading.get_ident(), self._put_stack_samples)
        self._timer = FetchTimer(fetcher.dataset, stack_sampler)
        fetcher_class = type(fetcher)
        self._iterable = hasattr(fetcher, "dataset_iter")
        fetcher.__class__ = type(fetcher_class.__name__, (fetcher_class,), timed_attributes(fetcher_class, self._timer))

    def fetch(self, index: Any) -> Any:
        """Return what torch's fetcher returns, and record the time. A fetch that raises is not recorded."""
        self._guarded(self._timer.start)
        try:
            data = self._fetcher.fetch(index)
        except BaseException:
            self._timer.stack_sampler.pause()
            raise
        self._guarded(lambda: self._put_fetch(index))
        return data

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of torch's fetcher: torchdata's loader reads the iterator of the dataset from it."""
        return getattr(self._fetcher, name)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Call the action; if it raises, report that and time no more."""
        if not self._disabled:
            try:
                action()
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

    def _put_stack_samples(self, counts: StackCounts) -> None:
        self._worker_files.put(
            StackSamplesLine(
                loader=self._loader,
                worker=-1,
                at_s=self._now(),
                samples=counts.samples,
                states=dict(counts.states),
                functions=counts.top_functions(),
            )
        )

    def _now(self) -> float:
        """Return the seconds since the run started."""
        return time.perf_counter() - self._clock_start


class TorchLoaderView:
    """The LoaderView of a torch DataLoader."""

    def __init__(self, loader: Any, number: int, name: str, worker_files: WorkerFiles, clock_start: float) -> None:
        self.loader = loader
        self.number = number
        self.name = name
        self._worker_files = worker_files
        self._clock_start = clock_start
        self._pids: dict[int, int] = {}

    def describe(self) -> LoaderLine:
        """Return the line with its settings as requested and as in force."""
        return describe(self.loader, self.number, self.name)

    def iterator(self, epoch: int) -> Iterator[Any]:
        """Return torch's own iterator, with timers in its workers."""
        return self._make_iterator(self.loader, epoch, iter)

    def _make_iterator(self, loader: Any, epoch: int, make: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        iterator = make_iterator(loader, self.number, epoch, self._worker_files, self._clock_start, make)
        self._pids = worker_pids(iterator)
        return iterator

    def state(self, iterator: Iterator[Any]) -> LoaderState:
        """Return the batches that are ready and outstanding, and the worker of the next batch."""
        return queue_state(iterator)

    def wait_parts(self, iterator: Iterator[Any]) -> WaitParts:
        """Return how long the sampler and the empty queue took."""
        return take_wait_parts(iterator)

    def processes(self) -> dict[int, int]:
        """Return the worker processes of the epoch that began last."""
        return self._pids

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Return nothing: the lines of workers are read from the WorkerFiles, for all loaders together."""
        return ()
