"""Iterations of `penstock.DataLoader` that run on Penstock's workers: map-style datasets with num_workers > 0.

The training loop's thread draws batches from the sampler, at most num_workers × prefetch_factor ahead, as torch does,
and publishes them in the work queue; it collects what workers report when it asks for its next batch.
"""

from __future__ import annotations

import logging
import os
import select
import warnings
import weakref
from typing import Any

import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import collate

from penstock.data.batch.sample_layout import collates_as_torch
from penstock.data.decode.dataset_program import has_getitems
from penstock.engine.worker_group import default_context
from penstock.runtime.batch_collector import BatchCollector, PendingBatch, PinningThread
from penstock.runtime.dataloader_worker import DatasetWork
from penstock.runtime.resumable_sampler import ResumableSampler

torch_collate: Any = collate
wrapped: Any = ExceptionWrapper
log = logging.getLogger("penstock")

MAX_AHEAD, AHEAD_BYTES = 64, 128 << 20
"""Batches that may be ahead where prefetch_factor is not set, and the bytes that they may take. So many are drawn only
if the training loop waits for one batch while later ones are complete, as for a sample that takes 50 times as long."""


def engine_is_available() -> bool:
    """Return whether this system has what the workers need: POSIX locks and poll."""
    return os.name == "posix" and hasattr(select, "poll")


class EngineProgress:
    """The part of an epoch that was delivered: the content of the loader's `state_dict`. It outlives the workers."""

    def __init__(self, loader: Any, state: dict[str, Any] | None, epoch: int) -> None:
        self._loader = weakref.ref(loader)  # a cycle would keep the workers of persistent iterations alive
        self._rng_at_start = loader.epoch_rng.state_dict(loader)
        self.sampler = ResumableSampler(loader.batch_sampler, loader.snapshot_every_n_steps or 0)
        self.epoch = epoch
        self.base_seed: int | None = None
        self.delivered = 0
        """All batches before this number are delivered."""
        self.ahead: set[int] = set()
        """Batches after it that are delivered as well."""
        self.samples = 0
        """Samples in the batches before that number."""
        self.finished = False
        self._sizes: dict[int, int] = {}
        """Samples of the batches that were delivered ahead."""
        if state is not None:
            loader.epoch_rng.load_state_dict(loader, state["rng"])
            self._rng_at_start = state["rng"]
            self.sampler.load_state_dict(state["sampler"])
            self.epoch, self.base_seed = state["epoch"], state["base_seed"]
            self.delivered, self.samples = state["batches"], state["samples"]
            self._sizes = dict(state["ahead"])
            self.ahead = set(self._sizes)

    def note_delivered(self, number: int, size: int) -> None:
        """Note that a batch of so many samples was delivered."""
        self.ahead.add(number)
        self._sizes[number] = size
        while self.delivered in self.ahead:
            self.ahead.remove(self.delivered)
            self.samples += self._sizes.pop(self.delivered)
            self.delivered += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that was delivered last; at the end of an epoch that of the next one."""
        loader, finished = self._loader(), self.finished
        assert loader is not None  # it asks for the state
        following = self.epoch + 1 if loader.persistent_workers else 0  # new workers count from 0, with a new seed
        return {
            "finished": finished,
            "epoch": following if finished else self.epoch,
            "base_seed": self.base_seed if loader.persistent_workers or not finished else None,
            "batches": 0 if finished else self.delivered,
            "ahead": [] if finished else sorted(self._sizes.items()),
            "samples": 0 if finished else self.samples,
            "rng": loader.epoch_rng.state_dict(loader) if finished else self._rng_at_start,
            "sampler": self.sampler.state_for_next_epoch() if finished else self.sampler.state_at(self.delivered),
        }


class EngineIteration:
    """One iteration over a map-style dataset with worker processes; with persistent workers one after the other."""

    progress: EngineProgress

    def __init__(self, loader: Any, state: dict[str, Any] | None) -> None:
        self._in_order = loader.in_order
        self._timeout_s = loader.timeout or float("inf")
        self._ahead = self._max_ahead = loader.num_workers * loader.prefetch_factor
        if not loader.prefetch_factor_is_set:
            self._max_ahead = max(self._ahead, MAX_AHEAD)
        self._persistent = loader.persistent_workers
        self._pins = _pins_memory(loader)
        self._rng = loader.epoch_rng
        self._collector: BatchCollector | None = None
        self._pinning: PinningThread | None = None
        self._stop: weakref.finalize[Any, Any] | None = None
        self._begin(loader, state, epoch=0)

    @staticmethod
    def initial_state(loader: Any) -> dict[str, Any]:
        """Return the state of a loader that has not been iterated over: its first epoch begins."""
        progress = EngineProgress(loader, None, epoch=-1)
        progress.finished = True
        return progress.state_dict()

    def begin_epoch(self, loader: Any, state: dict[str, Any] | None) -> None:
        """Begin the next epoch with the same workers."""
        if self._collector is not None and self._outstanding:
            self._stop_pinning()
            self._collector.abandon_epoch()
        self._begin(loader, state, self.progress.epoch + 1)

    def _begin(self, loader: Any, state: dict[str, Any] | None, epoch: int) -> None:
        base_seed = None if self._collector is None or state is not None else self.progress.base_seed
        self.progress = progress = EngineProgress(loader, state, epoch)
        self._drawn = self._next = progress.delivered
        """Batches drawn, and the number of the batch to deliver next."""
        self._position = progress.samples
        """Samples drawn."""
        self._outstanding = 0
        self._exhausted = False
        with self._rng.in_use():
            self._indices = iter(progress.sampler)
            if base_seed is None:
                base_seed = _draw_seed(loader.generator)
            progress.base_seed = base_seed if progress.base_seed is None else progress.base_seed
            self._base_seed = progress.base_seed
            progress.sampler.start()
        if self._collector is None:
            self._start(loader)
        if self._pins:
            assert self._collector is not None
            self._pinning = self._collector.pinning = self._pinning or PinningThread(self._collector)
        for _ in range(self._ahead):
            self._draw()

    def _start(self, loader: Any) -> None:
        spread = loader.collate_fn is torch_collate.default_collate and collates_as_torch()
        spread = spread and not has_getitems(loader.dataset)
        program = DatasetWork(
            loader.dataset, loader.collate_fn, loader.worker_init_fn, self._base_seed, loader.num_workers
        )
        context = loader.multiprocessing_context or default_context()
        method = context.get_start_method() if hasattr(context, "get_start_method") else "a context of the user"
        reason = "they share its memory" if method == "fork" else "they get it pickled, with its arrays shared"
        log.info("%d workers are started by %s: %s", loader.num_workers, method, reason)
        self._collector = BatchCollector(program, context, self._max_ahead, spread=spread)
        loader.engine_work = self._collector.work
        self._stop = weakref.finalize(self, self._collector.stop)

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """Draw a batch and publish it, unless the sampler has no more."""
        if self._exhausted:
            return
        assert self._collector is not None
        while True:
            try:
                with self._rng.in_use():
                    indices = next(self._indices)
            except StopIteration:
                self._exhausted = True
                return
            if not hasattr(indices, "__len__"):
                indices = list(indices)
            number, position = self._drawn, self._position
            self._drawn += 1
            if number not in self.progress.ahead:
                break
            self._position += len(indices)
        self._position += len(indices)
        self._collector.publish(number, indices, self._base_seed, self.progress.epoch, position)
        self._outstanding += 1
        if self._pinning is not None:
            self._pinning.request(number if self._in_order else -1)

    # -- delivering ------------------------------------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Whether its workers belong to this process, and not to one that this is a fork of."""
        return self._collector is None or self._collector.is_ours

    def __iter__(self) -> EngineIteration:
        return self

    def __len__(self) -> int:
        return len(self.progress.sampler)

    def __next__(self) -> Any:
        with torch.autograd.profiler.record_function("enumerate(DataLoader)#EngineIteration.__next__"):
            collector = self._collector
            if not self._outstanding or collector is None:
                self._end()
                raise StopIteration
            if not collector.is_ours:
                raise RuntimeError("this process is a fork of the one that iterates: call iter(loader) in this one")
            self._grow(collector)
            pending, batch = self._take(collector)
            self._outstanding -= 1
            self._note_delivered(pending)
            self._draw()
            if batch is None:
                batch = collector.assemble(pending)
            if isinstance(batch, ExceptionWrapper):
                wrapped.reraise(batch)
            if isinstance(batch, RuntimeError):
                raise batch
            return batch

    def _grow(self, collector: BatchCollector) -> None:
        """Allow more batches ahead if one batch holds up the others, and they are small enough."""
        if self._ahead < self._max_ahead and self._in_order and not self._pins and collector.is_held_up(self._next):
            fitting = AHEAD_BYTES // max(1, collector.batch_bytes)
            wanted = max(self._ahead, min(2 * self._ahead, self._max_ahead, fitting))
            for _ in range(wanted - self._ahead):
                self._draw()
            self._ahead = wanted

    def _take(self, collector: BatchCollector) -> tuple[PendingBatch, Any]:
        """Return the next batch, and what is in it if that was assembled already."""
        while self._in_order and self._next in self.progress.ahead:
            self._next += 1
        if self._pinning is not None:
            pinned = self._pinning.take(self._timeout_s)
            if pinned is not None:
                return pinned
        else:
            pending = collector.take(self._next if self._in_order else None, self._timeout_s, replaces=True)
            if pending is not None:
                return pending, None
        raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds")

    def _note_delivered(self, pending: PendingBatch) -> None:
        self.progress.note_delivered(pending.number, pending.count)
        if self._in_order:
            self._next = pending.number + 1

    def _end(self) -> None:
        """End the workers after the last batch, unless they stay for the next epoch."""
        self.progress.finished = self._exhausted
        if not self._persistent:
            self.close()

    def _stop_pinning(self) -> None:
        pinning, self._pinning = self._pinning, None
        if pinning is not None:
            pinning.finish()
            if self._collector is not None:
                self._collector.pinning = None

    def close(self) -> None:
        """Stop the workers. The iterator has no more batches then."""
        self._stop_pinning()
        self._outstanding = 0
        self._exhausted = True
        self._collector = None
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()


def _draw_seed(generator: torch.Generator | None) -> int:
    """Return a seed for the workers, drawn as torch draws it."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _pins_memory(loader: Any) -> bool:
    """Return whether batches are to be pinned; warn as torch does if they cannot be."""
    if not loader.pin_memory:
        return False
    if loader.pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{loader.pin_memory_device}'.",
            stacklevel=5,
        )
    if not torch.accelerator.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=5,
        )
        return False
    return True
