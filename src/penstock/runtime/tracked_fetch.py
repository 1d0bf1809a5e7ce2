"""Runs inside torch's worker processes: attaches the state of the dataset to each batch of `penstock.DataLoader`.

torch's worker loop is not changed. It calls a `worker_init_fn` and then makes a fetcher, which draws samples and
collates them. `WorkerStart` is that function: it calls the user's own, loads the state to resume from, and lets torch
make fetchers of the classes below. A batch then travels as a `TrackedBatch`, from which the training process takes
state and data.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import fetch
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _DatasetKind

from penstock.data.order.sampler_state import is_stateful


@dataclass
class WorkerState:
    """The state of one worker after a batch. With num_workers=0 there is one of these, too."""

    saved: bytes | None = None
    """The pickled states of dataset and iterator (see `dataset_state`); None if neither has one."""
    batches_since: int = 0
    """Batches delivered since `saved`. They are made once more, and dropped."""
    indexes_since: list[Any] = field(default_factory=list)
    """The indexes of these batches, of a map-style dataset."""
    ended: bool = False
    """Whether the worker's iterable dataset is exhausted in this epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return a plain dict; the states of dataset and iterator in it are the user's own."""
        saved = {} if self.saved is None else pickle.loads(self.saved)  # noqa: S301 - this loader's worker pickled it
        numbers = {"batches_since": self.batches_since, "indexes_since": list(self.indexes_since), "ended": self.ended}
        return {**saved, **numbers}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> WorkerState:
        """Return the state that `state_dict` gave."""
        saved = pickle.dumps({name: state[name] for name in ("dataset", "iterator") if name in state})
        return cls(saved, state["batches_since"], list(state["indexes_since"]), state["ended"])


def dataset_state(dataset: Any, iterator: Any) -> bytes | None:
    """Return the pickled states of a dataset and its iterator, by name; None if neither has a state.

    It is pickled at once, because the objects in it may be the dataset's own, which go on changing. A dataset that is
    its own iterator is saved once, as the iterator.
    """
    state = {}
    if dataset is not iterator and is_stateful(dataset):
        state["dataset"] = dataset.state_dict()
    if is_stateful(iterator):
        state["iterator"] = iterator.state_dict()
    return pickle.dumps(state) if state else None


def load_dataset_state(dataset: Any, state: WorkerState) -> None:
    """Load the dataset's part of the state, if it has one. iter() of the dataset comes after it."""
    saved = state.state_dict()
    if "dataset" in saved and is_stateful(dataset):
        dataset.load_state_dict(saved["dataset"])


def load_iterator_state(fetcher: Any, state: WorkerState) -> None:
    """Let the iterator of one of torch's fetchers continue where the state was saved."""
    iterator: Any = getattr(fetcher, "dataset_iter", None)
    saved = state.state_dict()
    if "iterator" in saved and is_stateful(iterator):
        iterator.load_state_dict(saved["iterator"])
    if iterator is not None:
        fetcher.ended = state.ended


def load_ended_iterator(dataset: Any, state: WorkerState) -> None:
    """Load the state of an iterator at the end of its epoch; that of the next epoch is made after it."""
    saved = state.state_dict()
    if "iterator" in saved and is_stateful(iterator := iter(dataset)):
        iterator.load_state_dict(saved["iterator"])


def skip_samples(fetcher: Any, count: int) -> None:
    """Draw samples of an iterable dataset and drop them."""
    if not fetcher.ended:  # itertools.islice would call iter(), which may reset a dataset
        deque(map(next, repeat(fetcher.dataset_iter, count)), maxlen=0)


@dataclass(frozen=True)
class TrackedTask:
    """The index of a task of torch's worker loop, with what the worker has to know about it."""

    number: int
    """Counts the tasks of an epoch."""
    sample_index: Any
    """An index, or the list of them, as the sampler gave it."""
    wants_state: bool
    """Whether the state after this batch may become part of the loader's."""


class StateRequest:
    """The index of a task that draws no sample: the worker replies with a `TrackedBatch` without data."""


@dataclass(slots=True)
class TrackedBatch:
    """A batch on its path from a worker to the training process."""

    number: int
    """The task's number; -1 in the reply to a StateRequest."""
    worker: int
    data: Any
    saved: bytes | None
    """The state after this batch, if the task asked for it and the dataset has one."""
    ended: bool
    """Whether the worker's dataset is exhausted after this batch."""
    exhausted: bool
    """Whether it was so before, so that this is no batch."""

    def pin_memory(self, device: Any = None) -> TrackedBatch:
        """Pin the tensors of the data; torch's pinning thread calls this."""
        self.data = pin_memory(self.data, device)  # type: ignore[no-untyped-call]
        return self


class WorkerStart:
    """The `worker_init_fn` of a worker: calls the user's own, and lets torch make the fetchers of this module."""

    def __init__(
        self, init_fn: Callable[[int], object] | None, states: list[WorkerState] | None, *, begins_epoch: bool
    ) -> None:
        """`states` are those to resume from, one per worker; with `begins_epoch` they are of the end of an epoch."""
        self._init_fn = init_fn
        self._states = states
        self._begins_epoch = begins_epoch

    def __call__(self, worker: int) -> None:
        """Prepare this process, the worker of that number."""
        if self._init_fn is not None:
            self._init_fn(worker)
        info = get_worker_info()
        assert info is not None
        dataset, state = info.dataset, self._states[worker] if self._states else None
        if state is not None:
            load_dataset_state(dataset, state)
            if self._begins_epoch and isinstance(dataset, IterableDataset):
                load_ended_iterator(dataset, state)
                state = None
        make_untracked: Any = _DatasetKind.create_fetcher

        def create_fetcher(kind: int, dataset_to_fetch: Any, *settings: Any) -> Any:
            nonlocal state
            if dataset_to_fetch is not dataset:  # that of a loader which the user's dataset makes
                return make_untracked(kind, dataset_to_fetch, *settings)
            tracked = _TrackedMapFetcher if kind == _DatasetKind.Map else _TrackedIterableFetcher
            fetcher = tracked(dataset, *settings)
            fetcher.worker = worker
            if state is not None:
                load_iterator_state(fetcher, state)
                fetcher.resumed, state = state, None
            return fetcher

        _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]


class _TrackedFetcher:
    """The part that both fetchers below share: `fetch` takes a TrackedTask and returns a TrackedBatch.

    It defines no attribute that torch's fetchers have: the watcher times those by descriptors on torch's classes.
    """

    dataset: Any
    auto_collation: bool
    worker: int
    resumed: WorkerState | None = None
    """The state that has been loaded, until the batches delivered since are dropped."""
    _end_reported = False

    def fetch(self, task: Any) -> Any:
        """Return a TrackedBatch: the state for a StateRequest, a batch for a TrackedTask."""
        if isinstance(task, StateRequest):
            return self._tracked(-1, None, wants_state=True)
        if self.resumed is not None:
            self._drop_delivered(self.resumed, task)
        try:
            data = super().fetch(task.sample_index)  # type: ignore[misc]
        except StopIteration:
            if not isinstance(self, _TrackedIterableFetcher) or self._end_reported:
                raise
            self.ended = self._end_reported = True
            return self._tracked(task.number, None, wants_state=True, exhausted=True)
        self._end_reported = getattr(self, "ended", False)
        return self._tracked(task.number, data, wants_state=task.wants_state or self._end_reported)

    def _drop_delivered(self, resumed: WorkerState, task: TrackedTask) -> None:
        self.resumed, self._end_reported = None, resumed.ended
        if isinstance(self, _TrackedIterableFetcher):
            skip_samples(self, resumed.batches_since * (len(task.sample_index) if self.auto_collation else 1))
        else:
            for index in resumed.indexes_since:
                super().fetch(index)  # type: ignore[misc]

    def _tracked(self, number: int, data: Any, *, wants_state: bool, exhausted: bool = False) -> TrackedBatch:
        saved = dataset_state(self.dataset, getattr(self, "dataset_iter", None)) if wants_state else None
        return TrackedBatch(number, self.worker, data, saved, getattr(self, "ended", False), exhausted)


class _TrackedMapFetcher(_TrackedFetcher, fetch._MapDatasetFetcher):
    """torch's fetcher for map-style datasets."""


class _TrackedIterableFetcher(_TrackedFetcher, fetch._IterableDatasetFetcher):
    """torch's fetcher for iterable datasets."""
