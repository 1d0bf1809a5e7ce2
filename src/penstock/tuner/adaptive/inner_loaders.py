"""The inner loaders of an AdaptiveLoader: each has one setting, and works on a share of the order."""

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
from penstock.tuner.loader_copy import is_iterable, like
from penstock.tuner.measure import SameSeed, repeats_itself, shut_down
from penstock.tuner.result import Setting
from penstock.tuner.trials import one_line, quiet
from penstock.watcher.dataloader.main_process import worker_pids


class OrderCursor:
    """Where in the sampler's order an epoch is."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler
        self._draw: Iterator[Any] | None = None
        self._back: deque[Any] = deque()

    @property
    def begun(self) -> bool:
        """Whether the sampler was asked for its order."""
        return self._draw is not None

    def begin(self) -> None:
        """From the start. Called as often as torch calls iter(): a sampler may throw its dice at every such call."""
        self._draw = iter(self._sampler)

    def take(self) -> Any:
        """The next batch of indices; StopIteration at the end."""
        if self._back:
            return self._back.popleft()
        assert self._draw is not None, "nothing is drawn before the order has begun"
        return next(self._draw)

    def give_back(self, taken: Iterable[Any]) -> None:
        """What was handed to a loader that never began: it comes next."""
        self._back.extendleft(reversed(list(taken)))


class IndexShare:
    """The part of an epoch's order that one inner loader works on: its batch_sampler.

    It ends when it is closed, though the epoch goes on: what the loader has drawn by then it still delivers.
    """

    def __init__(self, cursor: OrderCursor) -> None:
        self.open(cursor)

    def open(self, cursor: OrderCursor) -> None:
        """Work on this epoch from here on: again, for a loader whose workers stay for the next one."""
        self._cursor = cursor
        self._first = not cursor.begun
        self._noted: list[Any] | None = []
        self.closed = False

    def close(self) -> None:
        """No more from here."""
        self.closed = True

    def reopen(self) -> None:
        """The loader that was to follow never began."""
        self.closed = False

    def settle(self) -> None:
        """The loader has started: what it takes it keeps."""
        self._noted = None

    def undo(self) -> None:
        """The loader could not be started: everything that it took goes back."""
        self._cursor.give_back(self._noted or ())
        self.settle()

    def __iter__(self) -> IndexShare:
        if self._first:
            self._cursor.begin()
        return self

    def __next__(self) -> Any:
        if self.closed:
            raise StopIteration
        taken = self._cursor.take()
        if self._noted is not None:
            self._noted.append(taken)
        return taken


log = logging.getLogger("penstock")

KEPT_DECISIONS = 100


@dataclass(slots=True)
class InnerLoader:
    """One inner loader at work."""

    setting: Setting
    loader: DataLoader[Any]
    iterator: Iterator[Any]
    share: IndexShare | None
    """None: an iterable dataset, which has an order of its own."""
    delivered: int = 0

    @property
    def warm(self) -> bool:
        """Whether the batches that were made while nobody asked are delivered, and those that started it."""
        return self.delivered > self.setting.workers * self.setting.prefetch

    @property
    def seed(self) -> int:
        """That its workers' seeds come from."""
        return int(getattr(self.iterator, "_base_seed", 0))

    @property
    def workers(self) -> list[Any]:
        """Its processes."""
        return list(getattr(self.iterator, "_workers", ()))

    def worker_bytes(self) -> int:
        """What its first worker holds for itself; 0 where the system does not say."""
        with suppress(psutil.Error, AttributeError, StopIteration):
            return int(psutil.Process(next(iter(worker_pids(self.iterator)))).memory_full_info().uss)
        return 0


class InnerLoaderFactory:
    """Makes lanes, and remembers from epoch to epoch: what was decided, what was seen, workers that stay."""

    def __init__(self, controller: Policy, clock: Clock) -> None:
        self.controller = controller
        self.clock = clock
        self.window = StepWindow()
        self.decisions: deque[str] = deque(maxlen=KEPT_DECISIONS)
        self._staying: InnerLoader | None = None
        self._made = 0
        self._deals: bool | None = None

    def begin(self, pattern: DataLoader[Any], cursor: OrderCursor | None) -> InnerLoader:
        """The first lane of an epoch; workers that stayed go on with it where the setting is still theirs."""
        self._check_dealing(pattern)
        kept, self._staying = self._staying, None
        if kept is not None and kept.setting == self.controller.setting:
            if kept.share is not None and cursor is not None:
                kept.share.open(cursor)
            self._staying = lane = InnerLoader(kept.setting, kept.loader, iter(kept.loader), kept.share)
            return lane
        if kept is not None:
            shut_down(kept.iterator)
        return self.lane(pattern, self.controller.setting, cursor)

    def lane(
        self, pattern: DataLoader[Any], setting: Setting, cursor: OrderCursor | None, seed: int | None = None
    ) -> InnerLoader:
        """A new one. The first of an epoch seeds its workers from the loader's dice, as any DataLoader does.

        Others seed them from `seed`, so that the dice lie as if there had been no others.
        """
        self._made += 1
        changes: dict[str, Any] = {"num_workers": setting.workers, "prefetch_factor": setting.prefetch}
        if seed is not None:
            changes["generator"] = torch.Generator().manual_seed(seed + self._made)
        share = None if cursor is None else IndexShare(cursor)
        try:
            with quiet():
                loader = like(pattern, changes, order=share)
                lane = InnerLoader(setting, loader, iter(loader), share)
        except BaseException:
            if share is not None:
                share.undo()
            raise
        if share is not None:
            share.settle()
        if pattern.persistent_workers:
            self._staying = lane
        self.window.reset()
        return lane

    def forget(self) -> None:
        """No workers stay for the next epoch: they are not whole."""
        self._staying = None

    def say(self, before: Setting, decision: Decision) -> None:
        """One line for every decision."""
        line = f"{before} → {decision}" if decision.setting != before else f"still {decision}"
        log.info("AdaptiveLoader: %s", line)
        self.decisions.append(line)

    def _check_dealing(self, pattern: DataLoader[Any]) -> None:
        """Before an iterable dataset gets its second worker: one that deals nothing out would repeat its samples."""
        before = self.controller.setting
        if not is_iterable(pattern) or before.workers < 2 or pattern.num_workers > 1 or self._deals:
            return
        changes = {"num_workers": 2, "prefetch_factor": 1, "persistent_workers": False}
        dice = {"worker_init_fn": SameSeed(pattern.worker_init_fn), "generator": torch.Generator()}
        try:
            with quiet():
                self._deals = not repeats_itself(like(pattern, {**changes, **dice}))
            reason = "its dataset gives every worker the same samples"
        except Exception as error:
            self._deals, reason = False, one_line(error)
        if not self._deals:
            self.say(before, self.controller.refused(reason))
