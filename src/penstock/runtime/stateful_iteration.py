"""Iterations of `penstock.DataLoader` that do not run on the engine: torch's own iterators with exact state.

They deliver IterableDatasets, map-style datasets that have a state, `batch_size=None` and `num_workers=0`. Starting
workers, the worker loop, pinning, timeouts, order and errors are torch's. What is added here:

* the sampler is a `ResumableSampler`, which can begin in mid-epoch;
* in workers, each batch carries the state of the dataset after it (`tracked_fetch`), which is taken off here;
* `Progress` collects both as batches are delivered, not as they are made. It outlives the iterator and its workers.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from penstock.data.order.sampler_state import is_stateful
from penstock.errors import SettingError
from penstock.runtime.resumable_sampler import EpochRng, ResumableSampler
from penstock.runtime.tracked_fetch import (
    StateRequest,
    TrackedBatch,
    TrackedTask,
    WorkerStart,
    WorkerState,
    dataset_state,
    load_dataset_state,
    load_ended_iterator,
    load_iterator_state,
    skip_samples,
)

logger = logging.getLogger("penstock.dataloader")

_STATE_REQUEST = "state request"
"""The number of the task that asks a worker for its state; torch's own are whole numbers."""


class Progress:
    """The part of an epoch that one loader has delivered: the content of its `state_dict`.

    It has no reference to the loader, which may have one to the iterator, so that workers end with the last reference.
    """

    def __init__(self, loader: Any) -> None:
        self._num_workers = loader.num_workers
        self._order = SimpleNamespace(generator=loader.generator, _index_sampler=loader._index_sampler)
        self._rng: EpochRng = loader.epoch_rng
        self._rng_at_start = self._rng.state_dict(self._order)
        self.sampler = ResumableSampler(loader._index_sampler, loader.snapshot_every_n_steps or 0)
        self.batches = 0
        """Batches delivered in this epoch."""
        self.position = 0
        """Indexes drawn from the sampler, up to the last one that was delivered."""
        self.undelivered: dict[int, Any] = {}
        """Indexes that were drawn and not delivered, by their number; kept where batches are delivered out of order."""
        self.collect_workers: Callable[[], list[WorkerState]] = list
        """Returns the states of all workers after the batches that each has delivered."""
        self.next_worker = 0
        """The worker whose turn it is."""
        self.finished = False

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a saved state with the iterator that begins next."""
        self._rng.load_state_dict(self._order, state["rng"])
        self._rng_at_start = state["rng"]
        self.sampler.load_state_dict(state["sampler"])
        self.batches, self.next_worker = state["batches"], state["next_worker"]
        self.position = state["sampler"].get("position", 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that was delivered last; at the end of an epoch that of the next one."""
        finished = self.finished
        workers = self.collect_workers()
        return {
            "num_workers": self._num_workers,
            "finished": finished,
            "batches": 0 if finished else self.batches,
            "rng": self._rng.state_dict(self._order) if finished else self._rng_at_start,
            "sampler": self.sampler.state_for_next_epoch() if finished else self.sampler.state_at(self.position),
            "undelivered": [index for number, index in self.undelivered.items() if number < self.position],
            "workers": [worker.state_dict() for worker in workers],
            "next_worker": 0 if finished else self.next_worker,
        }


def initial_state(loader: Any) -> dict[str, Any]:
    """Return the state of a loader that has not been iterated over: its first epoch begins."""
    progress = Progress(loader)
    progress.finished = True
    return progress.state_dict()


def begin_iteration(loader: Any, state: dict[str, Any] | None) -> SingleProcessIteration | MultiProcessIteration:
    """Return an iterator over the next epoch, or over the rest of the epoch that was saved."""
    if state is not None and state["num_workers"] != loader.num_workers:
        raise SettingError(
            f"the state was saved with num_workers={state['num_workers']}, this loader has"
            f" num_workers={loader.num_workers}, and each worker has a state of its own",
            advice=f"Resume with num_workers={state['num_workers']}",
        )
    return (SingleProcessIteration if loader.num_workers == 0 else MultiProcessIteration)(loader, state)


class _LoaderWith:
    """A loader, some of whose attributes are replaced for the iterator that torch makes from it."""

    def __init__(self, loader: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class SingleProcessIteration(_SingleProcessDataLoaderIter):
    """One epoch with num_workers=0."""

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        self.progress = Progress(loader)
        saved, begins_epoch = None, True
        if state is not None:
            self.progress.resume(state)
            begins_epoch = state["finished"]
            saved = WorkerState.from_state_dict(state["workers"][0]) if state["workers"] else None
        if saved is not None:
            load_dataset_state(loader.dataset, saved)
            if begins_epoch:
                load_ended_iterator(loader.dataset, saved)
        with loader.epoch_rng.in_use():
            super().__init__(_LoaderWith(loader, _index_sampler=self.progress.sampler))
            self.progress.sampler.start()
            if (
                saved is not None
                and not saved.ended
                and not begins_epoch
                and self._dataset_kind == _DatasetKind.Iterable
            ):
                _log_repeated_work(saved.batches_since)
                skip_samples(self._dataset_fetcher, saved.batches_since * (loader.batch_size or 1))
        if saved is not None and not begins_epoch:  # it may set torch's global generator, which the dataset draws from
            load_iterator_state(self._dataset_fetcher, saved)
        self._num_yielded = self.progress.batches
        self.progress.collect_workers = self._worker_states

    def _next_data(self) -> Any:
        try:
            data = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            self.progress.finished = True
            raise
        self.progress.batches += 1
        self.progress.position = self.progress.sampler.position
        return data

    def _worker_states(self) -> list[WorkerState]:
        fetcher = self._dataset_fetcher
        saved = dataset_state(fetcher.dataset, getattr(fetcher, "dataset_iter", None))
        batches = 0 if saved is not None else self.progress.batches
        return [WorkerState(saved, batches, ended=getattr(fetcher, "ended", False))]

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch that was delivered last."""
        return self.progress.state_dict()


class MultiProcessIteration(_MultiProcessingDataLoaderIter):
    """One epoch with torch's worker processes; with persistent workers one epoch after the other."""

    _shutdown = True
    """torch sets this to False when it starts the workers."""

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        self._pid = os.getpid()
        self._prepare(loader, state)
        begins_epoch = state is None or state["finished"]
        states = None
        if state is not None and state["workers"] and (loader.persistent_workers or not begins_epoch):
            states = [WorkerState.from_state_dict(each) for each in state["workers"]]
        if states is not None and not begins_epoch:
            self._workers_delivered[:] = states
            self._ask_workers = False
            if loader._dataset_kind == _DatasetKind.Iterable:
                _log_repeated_work(sum(each.batches_since for each in states if not each.ended))
        start = WorkerStart(loader.worker_init_fn, states, begins_epoch=begins_epoch)
        replaced = {"_index_sampler": self.progress.sampler, "worker_init_fn": start}
        if states is not None and begins_epoch:  # workers that go on into their next epoch were seeded before
            replaced["generator"] = loader.epoch_rng.copy_for(loader)
        with loader.epoch_rng.in_use():
            super().__init__(_LoaderWith(loader, **replaced))
        if not loader.in_order and not hasattr(self, "_in_order"):
            raise SettingError(
                "this version of torch delivers the batches of this dataset in order only",
                advice="Leave out in_order=False, or install torch 2.6 or newer",
            )
        self._num_yielded = self.progress.batches
        if loader.worker_init_fn is not None:
            self._await_worker_states()  # so that iter() raises the error of worker_init_fn

    def _prepare(self, loader: Any, state: dict[str, Any] | None) -> None:
        """Make the records of an epoch."""
        self.progress = Progress(loader)
        self._snapshot_every = loader.snapshot_every_n_steps or 0
        self._delivers_in_order = loader.in_order
        self._keeps_indexes = loader._dataset_kind == _DatasetKind.Map and (
            not loader.in_order or is_stateful(loader.dataset)
        )
        """Whether the indexes of outstanding batches are kept in `progress.undelivered`."""
        self._again: deque[Any] = deque()
        """Indexes that an earlier run drew and did not deliver."""
        if state is not None:
            self.progress.resume(state)
            self._again.extend(state["undelivered"])
        self._workers_delivered = [WorkerState() for _ in range(loader.num_workers)]
        self._begun = False
        """Whether the first task of the epoch has been sent."""
        self._ask_workers = True
        """Whether workers are asked for their state when the epoch begins; a resumed epoch has it already."""
        self._silent_workers: set[int] = set()
        """Workers that have been asked and have not replied."""
        self._received: deque[Any] = deque()
        """Batches that came in while a reply was awaited."""
        self.progress.collect_workers = partial(_workers_delivered, weakref.ref(self), self._workers_delivered)

    @property
    def is_ours(self) -> bool:
        """Whether this process has started the workers, and is not a fork of it."""
        return self._pid == os.getpid()

    def begin_epoch(self, loader: Any, state: dict[str, Any] | None) -> None:
        """Begin the next epoch with the same workers, or with new ones that continue from the state."""
        if state is None:
            self._reset(loader)
        else:
            self._shutdown_workers()
            self.__init__(loader, state)  # type: ignore[misc]

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter:
            super()._reset(loader, first_iter)
            return
        self._prepare(loader, None)
        self._index_sampler = self.progress.sampler
        with loader.epoch_rng.in_use():
            super()._reset(loader)

    def _try_put_index(self) -> None:
        if not self._begun:
            self._begun = True
            for _ in range(self.progress.next_worker):
                next(self._worker_queue_idx_cycle)
            if self._ask_workers:
                for queue in self._index_queues:
                    queue.put([_STATE_REQUEST, StateRequest()])
                self._silent_workers.update(range(self._num_workers))
        super()._try_put_index()

    def _next_index(self) -> TrackedTask:
        if self._again:
            number = -len(self._again)
            index = self._again.popleft()
        else:
            index = super()._next_index()  # type: ignore[no-untyped-call]
            number = self.progress.sampler.position - 1
        if self._keeps_indexes:
            self.progress.undelivered[number] = index
        return TrackedTask(number, index, self._may_need_state())

    def _may_need_state(self) -> bool:
        """Return whether the next task may become one of those after which states are kept (see `_keeps_state`)."""
        every = self._snapshot_every
        if not every:
            return False
        earliest = self.progress.batches + 1
        latest = earliest + self._prefetch_factor * self._num_workers
        next_snapshot = -(-earliest // every) * every
        return bool(next_snapshot - self._num_workers < latest)

    def _keeps_state(self) -> bool:
        """Return whether the batch that is delivered now is among the last num_workers ones before a snapshot."""
        every = self._snapshot_every
        return bool(every and -self.progress.batches % every < self._num_workers)

    def _next_data(self) -> Any:
        while True:
            try:
                batch = super()._next_data()  # type: ignore[no-untyped-call]
            except StopIteration:
                self.progress.finished = True
                raise
            self._note_delivery(batch)
            if not batch.exhausted:
                return batch.data

    def _note_delivery(self, batch: TrackedBatch) -> None:
        progress, worker = self.progress, self._workers_delivered[batch.worker]
        index = progress.undelivered.pop(batch.number, None)
        if self._delivers_in_order:
            for number in [each for each in progress.undelivered if each < batch.number]:
                del progress.undelivered[number]  # making it has failed, and the loop went on
        worker.ended = batch.ended
        progress.next_worker = (batch.worker + 1) % self._num_workers
        if not batch.exhausted:
            progress.batches += 1
            progress.position = max(progress.position, batch.number + 1)
        if batch.saved is not None and (batch.ended or self._keeps_state()):
            worker.saved, worker.batches_since = batch.saved, 0
            worker.indexes_since.clear()
        elif not batch.exhausted:
            worker.batches_since += 1
            if is_stateful(self._dataset) and self._keeps_indexes:
                worker.indexes_since.append(index)

    def _get_data(self) -> Any:
        if self._received:
            return self._received.popleft()
        while True:
            message = super()._get_data()  # type: ignore[no-untyped-call]
            if not self._note_reply(message):
                return message

    def _note_reply(self, message: Any) -> bool:
        """Return whether a message is a worker's reply to a request for its state; if so, keep the state."""
        number, batch = message
        if not isinstance(number, str):
            return False
        if isinstance(batch, ExceptionWrapper):
            batch.reraise()  # type: ignore[no-untyped-call]
        self._workers_delivered[batch.worker].saved = batch.saved
        self._silent_workers.discard(batch.worker)
        return True

    def _await_worker_states(self) -> None:
        """Wait until every worker has replied with the state that it has at the beginning of the epoch."""
        while self._silent_workers and not self._shutdown:
            message = super()._get_data()  # type: ignore[no-untyped-call]
            if not self._note_reply(message):
                self._received.append(message)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch that was delivered last."""
        return self.progress.state_dict()


def _workers_delivered(
    iteration: weakref.ReferenceType[MultiProcessIteration], states: list[WorkerState]
) -> list[WorkerState]:
    """Return the states of the workers of an iteration, which may be gone; then no worker runs any more."""
    running = iteration()
    if running is not None:
        running._await_worker_states()
    return states


def _log_repeated_work(batches: int) -> None:
    if batches:
        logger.warning(
            "Resuming makes %d batches once more and drops them: neither the dataset nor its iterator has"
            " state_dict and load_state_dict, or snapshot_every_n_steps is large",
            batches,
        )
