"""`penstock.DataLoader`: a `torch.utils.data.DataLoader` that runs on Penstock's engine.

It is a subclass of torch's, so torch itself checks the arguments and makes the samplers, and frameworks that ask
`isinstance` accept it. What differs is the iterator:

* map-style dataset, `num_workers` > 0, batches made by the loader: `runtime/engine_iteration.py`
* everything else (`num_workers=0`, IterableDataset, `batch_size=None`, datasets that have `state_dict` and
  `load_state_dict`): `runtime/stateful_iteration.py`, which is torch's own machinery with exact state

Both kinds of iterator have `state_dict()`; the state to resume from is passed to their constructor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import IterableDataset

from penstock.data.order.sampler_state import is_stateful
from penstock.errors import SettingError
from penstock.frameworks import keep_in_accelerate
from penstock.runtime.batch_collector import EngineWork
from penstock.runtime.engine_iteration import EngineIteration, engine_is_available
from penstock.runtime.resumable_sampler import EpochRng
from penstock.runtime.stateful_iteration import begin_iteration, initial_state

T = TypeVar("T")
STATE_VERSION = 1


class DataLoader(torch.utils.data.DataLoader[T]):
    """A drop-in for `torch.utils.data.DataLoader`: the same arguments, order, seeds, batches and errors.

        from penstock import DataLoader  # instead of torch.utils.data
        loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=8)

    Samples of one batch are made by all workers together, so that neither a slow worker nor a heavy sample delays the
    others; tensors are written into shared memory; `state_dict` and `load_state_dict` resume at the next batch.

    Args:
        dataset (Dataset): Where samples come from: map-style, or an IterableDataset.
        batch_size (int or None, default 1): Samples per batch. None: samples are delivered one by one, as torch does.
        shuffle (bool, default None): Whether each epoch has a new random order, by torch's RandomSampler.
        sampler (iterable, default None): The order of the samples, in place of `shuffle`.
        batch_sampler (iterable of lists, default None): Whole batches, in place of `batch_size`, `shuffle`, `sampler`
            and `drop_last`.
        num_workers (int, default 0): Worker processes. 0: samples are made in the training loop.
        collate_fn (callable, default None): Makes a batch of a list of samples. One worker then makes each batch. None:
            torch's `default_collate`.
        pin_memory (bool, default False): Whether batches are copied to pinned memory, by a thread of its own.
        drop_last (bool, default False): Whether a last batch that is not full is left out.
        timeout (float, default 0): Seconds to wait for a batch before a RuntimeError. 0: forever.
        worker_init_fn (callable, default None): Called in every worker with its number, before its first sample.
        multiprocessing_context (str or context, default None): How workers are started. None: forked where the system
            can, unless `multiprocessing.set_start_method` says otherwise.
        generator (torch.Generator, default None): Seeds the order and the workers. None: torch's global generator.
        prefetch_factor (int, default None): Batches ahead of the training loop per worker, at most. None: 2, and up to
            64 batches in all while the loop waits for one batch and later ones are complete, if they are small.
        persistent_workers (bool, default False): Whether workers live from epoch to epoch. Otherwise each epoch starts
            new ones, which see the changes made to the dataset in between.
        pin_memory_device (str, default ""): As in torch, where it is deprecated.
        in_order (bool, default True): Whether batches are delivered in the order of the sampler, or as they are ready.
        snapshot_every_n_steps (int, default 1): How often the state of a dataset that has one is fetched from its
            worker. The loader's state is exact after every batch; a resumed worker makes up to that many batches once
            more and drops them. 0 or None: only the states at the beginning of an epoch are fetched.
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
    ) -> None:
        if snapshot_every_n_steps is not None and snapshot_every_n_steps < 0:
            raise ValueError(f"snapshot_every_n_steps must be at least 0, not {snapshot_every_n_steps}")
        newer = {"in_order": in_order} if _TORCH_HAS_IN_ORDER else {}  # torch 2.4 and 2.5 do not have it
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **newer,
        )
        self.in_order = in_order
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.prefetch_factor_is_set = prefetch_factor is not None
        self._state_to_load: dict[str, Any] | None = None
        """The state that the next iteration begins with."""
        self.epoch_rng = EpochRng()
        """The generators from which order and seeds of each epoch are drawn."""
        self._progress: Any = None
        """The state of the iteration that began last. It may outlive the iterator and its workers."""
        self.engine_work: EngineWork | None = None
        """The work of those workers of Penstock's engine that were started last; None if there were none."""
        keep_in_accelerate(DataLoader)

    def __iter__(self) -> Any:
        kept: Any = self._iterator
        iteration: Any
        if self.persistent_workers and kept is not None and kept.is_ours:
            iteration = kept
            state, self._state_to_load = self._state_to_load, None
            iteration.begin_epoch(self, state)
        else:
            iteration = self._get_iterator()
            if self.persistent_workers:
                self._iterator = iteration
        self._progress = iteration.progress
        return iteration

    def _get_iterator(self) -> Any:
        """Return a new iterator: torch's `__iter__` and some frameworks call this."""
        state, self._state_to_load = self._state_to_load, None
        self.check_worker_number_rationality()
        return EngineIteration(self, state) if self.runs_on_engine else begin_iteration(self, state)

    @property
    def runs_on_engine(self) -> bool:
        """Whether workers of Penstock make the batches."""
        return (
            self.num_workers > 0
            and self._auto_collation
            and not isinstance(self.dataset, IterableDataset)
            and not is_stateful(self.dataset)
            and engine_is_available()
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch that was delivered last, for `load_state_dict` of a like loader.

        It consists of numbers, strings and tensors in plain containers, so that `torch.load(weights_only=True)` reads
        it, unless the sampler or the dataset has a `state_dict` of its own that returns something else.
        """
        if self._state_to_load is not None:
            return self._state_to_load
        kind = "engine" if self.runs_on_engine else "torch"
        if self._progress is not None:
            state = self._progress.state_dict()
        else:
            state = EngineIteration.initial_state(self) if self.runs_on_engine else initial_state(self)
        return {"version": STATE_VERSION, "kind": kind, **state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next iteration continue where `state_dict` was called; an empty dict changes nothing."""
        if not state_dict:
            return
        if state_dict.get("version") != STATE_VERSION:
            raise SettingError(
                f"this is not a state of penstock.DataLoader: its version is {state_dict.get('version')!r}",
                advice="Load the dict that state_dict() of such a loader has returned",
            )
        kind = "engine" if self.runs_on_engine else "torch"
        if state_dict["kind"] != kind:
            raise SettingError(
                "the state was saved by a loader of another kind of dataset, or with other workers",
                advice="Resume with the same kind of dataset, and with num_workers=0 only if it was saved with it",
            )
        self._state_to_load = dict(state_dict)


_TORCH_HAS_IN_ORDER = "in_order" in inspect.signature(torch.utils.data.DataLoader.__init__).parameters
