"""`penstock.AdaptiveLoader`: a torch DataLoader that finds its own settings while training.

It measures how long the loop waits and computes. Where data takes much of the time it changes the number of workers or
the prefetch factor, in the middle of an epoch: batches come in the order that any DataLoader with the same seed would
give, each exactly once. Settings given by the user stay as they are.

Limits: an iterable dataset has an order of its own that depends on the number of workers, so its settings change only
between epochs, and only if it divides its samples between workers. Random numbers drawn in workers depend on their
number, as with any DataLoader. Frameworks that build a loader of their own from this one's arguments get a plain one.

On several ranks each decides for itself: with any settings it delivers the batches of its sampler, in their order, and
as many as the other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.cores import rank_cores
from penstock.core.plan import TORCH_PREFETCH_FACTOR
from penstock.core.ranks import local_rank
from penstock.plan.worker_count import WorkerDemand, WorkerResources, worker_limit
from penstock.tuner.adaptive.controller import AdaptivePolicy, Policy
from penstock.tuner.adaptive.epoch import AdaptiveEpoch
from penstock.tuner.adaptive.inner_loaders import InnerLoaderFactory
from penstock.tuner.result import WorkerSettings
from penstock.watcher.loader_views import length_of
from penstock.watcher.rank_files import rank_and_world

Batch = TypeVar("Batch", covariant=True)

START_WORKERS = 2
"""Workers to begin with; not torch's 0, because a dataset with files open in this process cannot be sent to workers."""


class AdaptiveLoader(DataLoader[Batch]):
    """A DataLoader with the same arguments, all of them keywords.

    `num_workers` and `prefetch_factor` stay if they are given; otherwise they are adjusted while training. Every change
    is logged with its reason (logger "penstock", level INFO) and kept in `decisions`. The attributes `num_workers` and
    `prefetch_factor` are those in force.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        controller: Policy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **dataloader_kwargs: Any,
    ) -> None:
        """`controller` replaces the default one; `clock` is for tests."""
        workers, prefetch = (dataloader_kwargs.pop(name, None) for name in ("num_workers", "prefetch_factor"))
        policy = None
        if controller is None:
            start_workers = 1 if isinstance(dataset, IterableDataset) else min(START_WORKERS, rank_cores())
            controller = policy = AdaptivePolicy(
                WorkerSettings(
                    start_workers if workers is None else workers,
                    TORCH_PREFETCH_FACTOR if prefetch is None else prefetch,
                ),
                workers_pinned=workers is not None,
                prefetch_pinned=prefetch is not None,
                ranks=local_rank().world_size,
                synchronous=rank_and_world()[1] > 1,
            )
        start = controller.setting
        depth = start.prefetch if start.workers else prefetch
        super().__init__(dataset, num_workers=start.workers, prefetch_factor=depth, **dataloader_kwargs)
        if policy is not None:
            policy.max_workers = self._max_workers()
        self._factory = InnerLoaderFactory(controller, clock)

    def _max_workers(self) -> int:
        """Return the limit on workers that is known before a batch was made; the memory is checked at each change."""
        batches = None if isinstance(self.dataset, IterableDataset) else length_of(self)
        return worker_limit(WorkerResources(), WorkerDemand(epoch_batches=batches)).workers

    @property
    def decisions(self) -> tuple[str, ...]:
        """The last hundred changes that were made or refused, with the reason."""
        return tuple(self._factory.decisions)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        return AdaptiveEpoch(self, self._factory, self._use)

    def _use(self, setting: WorkerSettings) -> None:
        """Show the settings in force as attributes."""
        self.num_workers = setting.workers
        self.prefetch_factor = setting.prefetch if setting.workers else None
