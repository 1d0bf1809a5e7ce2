"""Views of loaders: what the watcher can learn from each kind, which is a torch DataLoader, a penstock.Loader or any
other iterable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.core.stats import LoaderStats
from penstock.recording.format import AnyLine, HopsLine, LoaderLine, LoaderSetting, StoreRequests
from penstock.storage.object_store.io_thread import store_counts
from penstock.watcher.dataloader.worker_files import WorkerFiles


class LoaderState(NamedTuple):
    """The state of a loader when the training loop requested a batch; None where it is not known."""

    ready: int | None = None
    """Batches that had arrived, including the requested one."""
    outstanding: int | None = None
    """Tasks that workers had been given and the training loop had not taken."""
    worker: int | None = None
    """The worker that makes the requested batch; -1 for the main process."""


class WaitParts(msgspec.Struct, frozen=True):
    """Parts of the wait for one batch."""

    sampler_s: float = 0.0
    """Seconds in which indices were drawn from the sampler."""
    idle_s: float | None = None
    """Seconds before a batch began to arrive; None if they were not measured."""


UNKNOWN_STATE = LoaderState()
UNKNOWN_WAIT = WaitParts()
_PLAIN_CONTAINERS = frozenset((list, tuple, dict))
_SAMPLE_TYPES = (str, bytes, int, float, dict)
"""A list of these is a batch of as many samples."""


class LoaderView(Protocol):
    """One loader as the watcher sees it."""

    number: int
    """Number of the loader in this run."""

    def describe(self) -> LoaderLine:
        """Return the line with its settings."""
        ...

    def iterator(self, epoch: int) -> Iterator[Any]:
        """Return the loader's iterator for this epoch."""
        ...

    def state(self, iterator: Iterator[Any]) -> LoaderState:
        """Return the state of the loader. It is called before every batch and takes microseconds."""
        ...

    def wait_parts(self, iterator: Iterator[Any]) -> WaitParts:
        """Return the parts of the wait that has just ended. It is called after every batch."""
        ...

    def processes(self) -> dict[int, int]:
        """Return the current worker processes, as process id → worker number."""
        ...

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Return new lines of this loader. It is called twice a second, in another thread than the training loop."""
        ...


def view_of(loader: Iterable[Any], number: int, name: str, worker_files: WorkerFiles, clock_start: float) -> LoaderView:
    """Return the view for a loader, by its class. `clock_start` is the start of the run on the session's clock."""
    if _is_instance(loader, "penstock.dataloader", "DataLoader") and loader.runs_on_engine:  # type: ignore[attr-defined]
        return PenstockDataLoaderView(loader, number, name)
    if _is_instance(loader, "torch.utils.data", "DataLoader"):
        from penstock.watcher.dataloader.main_process import TorchLoaderView

        return TorchLoaderView(loader, number, name, worker_files, clock_start)
    if _is_instance(loader, "penstock.loader", "Loader"):
        return PenstockLoaderView(loader, number, name)
    return PlainLoaderView(loader, number, name)


def _is_instance(loader: object, module: str, class_name: str) -> bool:
    """Return whether it is an instance of a class, without importing that: the module of an instance is imported."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(loader, getattr(imported, class_name))


class PlainLoaderView:
    """The view of any iterable: only its waits and steps can be timed."""

    def __init__(self, loader: Iterable[Any], number: int, name: str) -> None:
        self.loader = loader
        self.number = number
        self.name = name

    def describe(self) -> LoaderLine:
        """Return the line with its class and, if it has one, its length."""
        loader_class = type(self.loader)
        dataset = f"{loader_class.__module__}.{loader_class.__qualname__}"
        return LoaderLine(loader=self.number, name=self.name, dataset=dataset, batches=length_of(self.loader))

    def iterator(self, epoch: int) -> Iterator[Any]:
        """Return its own iterator."""
        return iter(self.loader)

    def state(self, iterator: Iterator[Any]) -> LoaderState:
        """Return an unknown state."""
        return UNKNOWN_STATE

    def wait_parts(self, iterator: Iterator[Any]) -> WaitParts:
        """Return unknown parts."""
        return UNKNOWN_WAIT

    def processes(self) -> dict[int, int]:
        """Return no processes: it may have some, but they are not known."""
        return {}

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Return no lines."""
        return ()


class PenstockLoaderView(PlainLoaderView):
    """The view of a penstock.Loader, which reports its hops at every poll."""

    loader: Any

    def __init__(self, loader: Any, number: int, name: str) -> None:
        super().__init__(loader, number, name)
        self._changes: tuple[str, ...] = ()
        """The engine's changes at the last poll."""

    def describe(self) -> LoaderLine:
        """Return the line with the settings that a torch DataLoader has as well."""
        settings = {
            name: LoaderSetting(requested=value, in_force=value)
            for name in ("batch_size", "num_workers", "drop_last")
            if isinstance(value := getattr(self.loader, name, None), int | None)
        }
        return LoaderLine(
            loader=self.number,
            name=self.name,
            type="penstock",
            settings=settings,
            dataset="penstock.Loader",
            batches=length_of(self.loader),
        )

    def state(self, iterator: Iterator[Any]) -> LoaderState:
        """Return an unknown state: the hops say more, and reading the engine's statistics at every step costs time."""
        return UNKNOWN_STATE

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Return one line with the hops and with what the engine has tuned."""
        stats: LoaderStats = self.loader.stats()
        engine = stats.engine
        new_changes, self._changes = _new_items(self._changes, engine.changes), engine.changes
        hops = {hop.name: (hop.busy_s, hop.starved_s, hop.blocked_s) for hop in stats.hops}
        return [
            HopsLine(
                loader=self.number,
                at_s=at_s,
                hops=hops,
                workers=engine.workers,
                readers=engine.readers,
                lookahead=engine.lookahead,
                ready=engine.ready_batches,
                bytes_read=engine.bytes_read,
                store=_store_requests(),
                changes=new_changes,
                gpu_times=None if stats.gpu_times is None else astuple(stats.gpu_times),
            )
        ]


class PenstockDataLoaderView(PlainLoaderView):
    """The view of a penstock.DataLoader on Penstock's engine, whose workers note how long they were busy and waited.

    Without workers and over an IterableDataset, its iterators are torch's, and so is its view.
    """

    loader: Any

    def __init__(self, loader: Any, number: int, name: str) -> None:
        super().__init__(loader, number, name)
        self._ended_s = (0.0, 0.0)
        """Seconds busy and waiting of workers that have ended: without persistent workers, those of earlier epochs."""

    def describe(self) -> LoaderLine:
        """Return the line with the settings of a torch DataLoader."""
        from penstock.watcher.dataloader.main_process import describe

        return msgspec.structs.replace(describe(self.loader, self.number, self.name), type="penstock")

    def iterator(self, epoch: int) -> Iterator[Any]:
        """Return its own iterator."""
        return self.make_iterator(self.loader, iter)

    def make_iterator(self, loader: Any, make: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """Return `make(loader)`; if that starts new workers, the sums of those before are kept."""
        before = loader.engine_work
        iterator = make(loader)
        if before is not None and loader.engine_work is not before:
            busy_s, waited_s = before.times()
            self._ended_s = self._ended_s[0] + busy_s, self._ended_s[1] + waited_s
        return iterator

    def processes(self) -> dict[int, int]:
        """Return the worker processes."""
        work = self.loader.engine_work
        return {} if work is None else {pid: worker for worker, pid in enumerate(work.pids) if pid is not None}

    def poll(self, at_s: float) -> Sequence[AnyLine]:
        """Return one line with what the workers did; none before the first epoch."""
        work = self.loader.engine_work
        if work is None:
            return ()
        busy_s, waited_s = work.times()
        outstanding, complete = work.ahead
        return [
            HopsLine(
                loader=self.number,
                at_s=at_s,
                hops={"decode": (self._ended_s[0] + busy_s, 0.0, self._ended_s[1] + waited_s)},
                workers=len(work.pids),
                lookahead=outstanding,
                ready=complete,
            )
        ]


def _store_requests() -> StoreRequests | None:
    """Return the sums of this process's requests to object stores; None if it has had no answer."""
    if not store_counts.answers:
        return None
    return StoreRequests(
        answers=store_counts.answers,
        bytes_read=store_counts.bytes_read,
        answer_s=store_counts.answer_s,
        body_s=store_counts.body_s,
        retries=store_counts.retries,
    )


def count_samples(batch: object) -> int | None:
    """Return the number of samples of a batch; None if it is not known.

    It is the first dimension of the batch's first array, or the length of a list of samples. No batch raises an error
    here, although the `shape` of torch's nested tensors does.
    """
    try:
        return _first_length(batch)
    except Exception:
        return None


def _first_length(batch: object) -> int | None:
    for _ in range(4):  # at most four levels of nested containers
        batch_type = type(batch)
        if batch_type not in _PLAIN_CONTAINERS:  # most batches are such containers, and a failing getattr is slow
            shape = getattr(batch, "shape", None)
            if isinstance(shape, tuple):
                return int(shape[0]) if shape else None
        if batch_type is dict or (batch_type not in _PLAIN_CONTAINERS and isinstance(batch, Mapping)):
            batch = next(iter(batch.values()), None)  # type: ignore[attr-defined]
        elif isinstance(batch, list | tuple) and batch:
            first = batch[0]
            if isinstance(first, _SAMPLE_TYPES):
                return len(batch)
            batch = first
        else:
            return None
    return None


def _new_items(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """Return the items that were appended to a list of the latest items, which drops its oldest ones."""
    for dropped in range(len(before)):
        kept = len(before) - dropped
        if now[:kept] == before[dropped:]:
            return now[kept:]
    return now


def length_of(loader: object) -> int | None:
    """Return the length of a loader or dataset; None if it has none, or if its `__len__` raises."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except Exception:  # raised by the user's code, which the training itself may never call
        return None
