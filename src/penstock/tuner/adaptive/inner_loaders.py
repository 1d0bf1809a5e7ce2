"""The inner loaders of an AdaptiveLoader: each has one combination of settings and works on a part of the order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader

from penstock.core.clock import Clock
from penstock.tuner.adaptive.controller import Decision, Policy, StepWindow
from penstock.tuner.loader_copy import copy_loader, is_iterable
from penstock.tuner.measure import SameSeed, shut_down_workers, workers_repeat_samples
from penstock.tuner.result import WorkerSettings
from penstock.tuner.trials import error_line, suppress_torch_warnings
from penstock.watcher.dataloader.main_process import worker_pids

log = logging.getLogger("penstock")

KEPT_DECISIONS = 100


class OrderCursor:
    """The position of an epoch in the order of the sampler."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler
        self._indices: Iterator[Any] | None = None
        self._returned: deque[Any] = deque()

    @property
    def begun(self) -> bool:
        """Whether the order was requested from the sampler."""
        return self._indices is not None

    def begin(self) -> None:
        """Request the order. This is called as often as torch calls iter(): a sampler may draw numbers each time."""
        self._indices = iter(self._sampler)

    def take(self) -> Any:
        """Return the next batch of indices; raise StopIteration at the end."""
        if self._returned:
            return self._returned.popleft()
        assert self._indices is not None, "the order has not begun"
        return next(self._indices)

    def give_back(self, taken: Iterable[Any]) -> None:
        """Return batches that a loader took but never started on; they come next."""
        self._returned.extendleft(reversed(list(taken)))


class IndexShare:
    """The part of an epoch's order that one inner loader works on: its batch_sampler.

    It ends when it is closed, although the epoch continues; the loader still delivers what it has taken by then.
    """

    def __init__(self, cursor: OrderCursor) -> None:
        self.open(cursor)

    def open(self, cursor: OrderCursor) -> None:
        """Work on this epoch from here on; also for a loader whose workers persist for the next epoch."""
        self._cursor = cursor
        self._is_first = not cursor.begun
        self._uncommitted: list[Any] | None = []
        self.closed = False

    def close(self) -> None:
        """Take no more indices."""
        self.closed = True

    def reopen(self) -> None:
        """Continue, because the loader that was to follow did not start."""
        self.closed = False

    def commit(self) -> None:
        """Keep all indices taken from now on and before: the loader has started."""
        self._uncommitted = None

    def roll_back(self) -> None:
        """Give back everything that was taken: the loader could not be started."""
        self._cursor.give_back(self._uncommitted or ())
        self.commit()

    def __iter__(self) -> IndexShare:
        if self._is_first:
            self._cursor.begin()
        return self

    def __next__(self) -> Any:
        if self.closed:
            raise StopIteration
        taken = self._cursor.take()
        if self._uncommitted is not None:
            self._uncommitted.append(taken)
        return taken


@dataclass(slots=True)
class InnerLoader:
    """A running DataLoader with one combination of settings."""

    setting: WorkerSettings
    loader: DataLoader[Any]
    iterator: Iterator[Any]
    share: IndexShare | None
    """None for an iterable dataset, which has an order of its own."""
    delivered: int = 0

    @property
    def is_warm(self) -> bool:
        """Whether the batches prefetched at its start, and those that started it, have been delivered."""
        return self.delivered > self.setting.workers * self.setting.prefetch

    @property
    def seed(self) -> int:
        """The base of the seeds of its workers."""
        return int(getattr(self.iterator, "_base_seed", 0))

    @property
    def workers(self) -> list[Any]:
        """Its worker processes."""
        return list(getattr(self.iterator, "_workers", ()))

    def worker_bytes(self) -> int:
        """Return the private memory of its first worker; 0 where the system does not report it."""
        with suppress(psutil.Error, AttributeError, StopIteration):
            return int(psutil.Process(next(iter(worker_pids(self.iterator)))).memory_full_info().uss)
        return 0


class InnerLoaderFactory:
    """Creates inner loaders, and keeps between epochs: decisions, measurements, and persistent workers."""

    def __init__(self, controller: Policy, clock: Clock) -> None:
        self.controller = controller
        self.clock = clock
        self.window = StepWindow()
        self.decisions: deque[str] = deque(maxlen=KEPT_DECISIONS)
        self._persistent: InnerLoader | None = None
        self._created = 0
        self._divides_samples: bool | None = None

    def begin_epoch(self, template: DataLoader[Any], cursor: OrderCursor | None) -> InnerLoader:
        """Return the first inner loader of an epoch; persistent workers continue if their settings still apply."""
        self._check_division(template)
        kept, self._persistent = self._persistent, None
        if kept is not None and kept.setting == self.controller.setting:
            if kept.share is not None and cursor is not None:
                kept.share.open(cursor)
            self._persistent = inner = InnerLoader(kept.setting, kept.loader, iter(kept.loader), kept.share)
            return inner
        if kept is not None:
            shut_down_workers(kept.iterator)
        return self.create(template, self.controller.setting, cursor)

    def create(
        self,
        template: DataLoader[Any],
        setting: WorkerSettings,
        cursor: OrderCursor | None,
        seed: int | None = None,
    ) -> InnerLoader:
        """Create an inner loader. The first of an epoch seeds its workers from the loader's random generator.

        That is what any DataLoader does. Further ones seed them from `seed`, so that they do not advance the generator.
        """
        self._created += 1
        changes: dict[str, Any] = {"num_workers": setting.workers, "prefetch_factor": setting.prefetch}
        if seed is not None:
            changes["generator"] = torch.Generator().manual_seed(seed + self._created)
        share = None if cursor is None else IndexShare(cursor)
        try:
            with suppress_torch_warnings():
                loader = copy_loader(template, changes, order=share)
                inner = InnerLoader(setting, loader, iter(loader), share)
        except BaseException:
            if share is not None:
                share.roll_back()
            raise
        if share is not None:
            share.commit()
        if template.persistent_workers:
            self._persistent = inner
        self.window.reset()
        return inner

    def discard_persistent(self) -> None:
        """Keep no workers for the next epoch, because one of them has died."""
        self._persistent = None

    def log_decision(self, before: WorkerSettings, decision: Decision) -> None:
        """Log a decision in one line and keep it."""
        line = f"{before} → {decision}" if decision.setting != before else f"still {decision}"
        log.info("AdaptiveLoader: %s", line)
        self.decisions.append(line)

    def _check_division(self, template: DataLoader[Any]) -> None:
        """Check, before an iterable dataset gets its second worker, that it divides its samples between workers."""
        before = self.controller.setting
        if not is_iterable(template) or before.workers < 2 or template.num_workers > 1 or self._divides_samples:
            return
        changes = {"num_workers": 2, "prefetch_factor": 1, "persistent_workers": False}
        seeds = {"worker_init_fn": SameSeed(template.worker_init_fn), "generator": torch.Generator()}
        try:
            with suppress_torch_warnings():
                self._divides_samples = not workers_repeat_samples(copy_loader(template, {**changes, **seeds}))
            reason = "its dataset gives every worker the same samples"
        except Exception as error:
            self._divides_samples, reason = False, error_line(error)
        if not self._divides_samples:
            self.log_decision(before, self.controller.refused(reason))
