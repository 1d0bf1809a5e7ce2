"""`penstock.AdaptiveLoader`: a torch DataLoader that finds its own settings while training.

It measures what the loop waits and computes. Where data takes much of the time it changes the number of workers, or the
depth of the prefetch, in the middle of an epoch: batches come in the order that any DataLoader with the same seed would
give, each exactly once. What the user has set stays as it is.

Limits: an iterable dataset has an order of its own that depends on the number of workers, so its settings change only
between epochs, and only if it deals its samples out to workers. Random numbers thrown in workers depend on how many
there are, as with any DataLoader. Frameworks that build a loader of their own from this one's get a plain one.

On several ranks each decides for itself: whatever its settings, it has the batches of its sampler, in their order,
and as many as the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from penstock.core.clock import SYSTEM_CLOCK, Clock
from penstock.core.cores import rank_cores
from penstock.core.ranks import local_rank
from penstock.tuner.adaptive.controller import AdaptivePolicy, Policy
from penstock.tuner.adaptive.epoch import AdaptiveEpoch
from penstock.tuner.adaptive.inner_loaders import InnerLoaderFactory
from penstock.tuner.result import PREFETCH, Setting
from penstock.watcher.rank_files import rank_and_world

Batch = TypeVar("Batch", covariant=True)

START_WORKERS = 2
"""To begin with. Not torch's 0: a dataset that has opened files in this process cannot be given to workers later."""


class AdaptiveLoader(DataLoader[Batch]):
    """A DataLoader with the same arguments, all by name.

    `num_workers` and `prefetch_factor` that are given stay; those left out are found. Every change is logged with its
    reason (logger "penstock", level INFO) and kept in `decisions`; `num_workers` and `prefetch_factor` are those in
    force.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        controller: Policy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **dataloader_kwargs: Any,
    ) -> None:
        """`controller` decides in place of our own; `clock` is for tests."""
        workers, prefetch = (dataloader_kwargs.pop(name, None) for name in ("num_workers", "prefetch_factor"))
        if controller is None:
            begin = 1 if isinstance(dataset, IterableDataset) else min(START_WORKERS, rank_cores())
            controller = AdaptivePolicy(
                Setting(begin if workers is None else workers, PREFETCH if prefetch is None else prefetch),
                workers_pinned=workers is not None,
                prefetch_pinned=prefetch is not None,
                ranks=local_rank().world_size,
                in_step=rank_and_world()[1] > 1,
            )
        start = controller.setting
        depth = start.prefetch if start.workers else prefetch
        super().__init__(dataset, num_workers=start.workers, prefetch_factor=depth, **dataloader_kwargs)
        self._workshop = InnerLoaderFactory(controller, clock)

    @property
    def decisions(self) -> tuple[str, ...]:
        """What was changed or refused so far, and why; the last hundred."""
        return tuple(self._workshop.decisions)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        return AdaptiveEpoch(self, self._workshop, self._adopt)

    def _adopt(self, setting: Setting) -> None:
        self.num_workers = setting.workers
        self.prefetch_factor = setting.prefetch if setting.workers else None
