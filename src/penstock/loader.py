"""Door 1: `penstock.Loader`. Joins the flow (what is done to the data) and the engine (who does it, and when)."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from penstock.core.cores import usable_cores
from penstock.core.settings import BatchSettings, EngineSettings, ErrorSettings
from penstock.engine.batch import Job
from penstock.engine.budget import Demand, default_budget, share_out
from penstock.engine.conductor import Epoch
from penstock.engine.engine import Engine, EnginePlan
from penstock.errors import PenstockError, SettingError
from penstock.flow.batch import Steps, count_steps, rank_batches
from penstock.flow.decode import Transform
from penstock.flow.deliver import Delivery, Slabs
from penstock.flow.fields.base import Field
from penstock.flow.ranks import find_ranks
from penstock.flow.shardfeed import BLOCK_BYTES, Ids, OrderSettings, ShardFeed
from penstock.flow.state import Position, read_state, write_state
from penstock.storage.paths import expand

log = logging.getLogger("penstock")

READERS = 4
"""Reads in flight to begin with: enough for an SSD, not too many for a disk."""


class Loader:
    """Streams shards as batches.

        loader = penstock.Loader("sa1b/*.tar", fields={"image": penstock.Image(".jpg", size=1024)}, batch_size=24)
        for batch in loader:
            loss = step(batch["image"])

    A batch is a dict of tensors (lists for fields without a fixed shape) and has the samples' keys under "__key__".
    Each pass over the loader is the next epoch; the order of an epoch depends on nothing but the seed, the epoch and
    the shards.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        fields: Mapping[str, Field],
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        device: str = "cpu",
        drop_last: bool = False,
        transform: Transform | None = None,
        batch_transform: Callable[[dict[str, Any]], Any] | None = None,
        max_samples: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        workers: int | None = None,
        readers: int | None = None,
        executor: Literal["auto", "process", "thread"] = "auto",
        memory_bytes: int | None = None,
        timeout_s: float = 120.0,
        on_error: Literal["raise", "skip", "replace"] = "raise",
        max_bad: float = 0.01,
        ledger: str | None = None,
        lanes: int = 64,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._batch = BatchSettings(batch_size, drop_last, device)
        self._engine_settings = EngineSettings(executor, workers, readers, memory_bytes, timeout_s)
        self._errors = ErrorSettings(on_error, max_bad, ledger)
        self._batch_transform = batch_transform
        self._ranks = find_ranks(rank, world_size, lanes)
        order = OrderSettings(shuffle, seed, lanes, block_bytes, max_samples)
        on_bad: Literal["raise", "skip"] = "raise" if on_error == "raise" else "skip"
        self._feed = ShardFeed(expand(shards), fields, order, transform, on_bad)
        self._at = Position()
        self._running: Engine | None = None
        self._delivery: Delivery | None = None
        self._jobs = 0
        self._pass_under_way: object | None = None
        self._asked_epoch: int | None = None
        self._close: weakref.finalize[[Slabs, Engine, ShardFeed], Loader] | None = None

    # -- what a DataLoader has ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._steps(0).batches

    @property
    def batch_size(self) -> int:
        """Samples per batch on this rank."""
        return self._batch.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether samples that do not fill a step on all ranks are left out."""
        return self._batch.drop_last

    @property
    def epoch(self) -> int:
        """The epoch that the next pass delivers, or that is being delivered."""
        return self._at.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that epoch, from its start; naming the one of this pass, or of a resume, changes nothing."""
        if epoch < 0:
            raise SettingError(f"epoch {epoch} is below 0")
        if self._pass_under_way is not None:
            self._asked_epoch = epoch if epoch != self._at.epoch else None
        elif epoch != self._at.epoch or self._at.under_way:
            self._at = Position(epoch)

    def __iter__(self) -> Iterator[Any]:
        if self._at.under_way:  # the last pass was left early: this one is a new epoch
            self._at = Position(self._at.epoch + 1)
        return self._pass()

    # -- resuming ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where we are: plain numbers and strings, the same on every rank."""
        return write_state(self._at, self._feed.identity())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: the next pass starts with the very next sample."""
        self._at = read_state(state, self._feed.identity())

    # -- a pass ------------------------------------------------------------------------------------------------

    def _pass(self) -> Iterator[Any]:
        engine, delivery = self._start()
        at = self._at
        order = self._feed.order(at.epoch)
        mine = list(rank_batches(order, at.samples, self.batch_size, self._ranks, self.drop_last))
        first = self._begin(engine, at.epoch, mine)
        this = self._pass_under_way = object()
        step = self.batch_size * self._ranks.world_size
        finished = False
        try:
            for number in range(len(mine)):
                if self._pass_under_way is not this:
                    raise PenstockError("another pass over this loader has begun", stage="deliver")
                batch = delivery.deliver(engine.wait_for(first + number))
                if self._batch_transform is not None:
                    batch = self._batch_transform(batch)
                self._at = Position(at.epoch, min(len(order), at.samples + (number + 1) * step), under_way=True)
                yield batch
                del batch  # else its slab would be held here while the next one is waited for
            finished = True
            delivery.check_books(sum(map(len, mine)))
            self._at = Position(at.epoch + 1)
        finally:
            if self._pass_under_way is this:
                self._leave(finished)

    def _begin(self, engine: Engine, epoch: int, batches: list[Ids]) -> int:
        """Have the engine make these batches; returns the number of the first."""
        first = self._jobs
        self._jobs += len(batches)
        uses = self._feed.uses(np.concatenate([np.zeros(0, np.int64), *batches]))
        engine.begin(Epoch((Job(first + i, epoch, samples) for i, samples in enumerate(batches)), uses))
        return first

    def _leave(self, finished: bool) -> None:
        """A pass has ended; one that was left early takes the engine with it."""
        self._pass_under_way = None
        asked, self._asked_epoch = self._asked_epoch, None
        if asked is not None:
            self._at = Position(asked)
        if not finished:
            self.close()

    def _start(self) -> tuple[Engine, Delivery]:
        if self._running is None or self._delivery is None:
            layout = self._feed.layout(self.batch_size)
            plan = self._plan(layout.size)
            engine = Engine(self._feed.supply, self._feed.work(layout), plan)
            slabs = Slabs(engine.slabs.view, plan.slabs, engine.conductor.release)
            self._running = engine
            self._close = weakref.finalize(self, _stop, slabs, engine, self._feed)
            self._delivery = Delivery(layout, slabs, self._feed, self._errors, self._batch.device)
        self._delivery.begin()
        return self._running, self._delivery

    def _plan(self, slab_bytes: int) -> EnginePlan:
        settings = self._engine_settings
        executor = _executor(settings)
        workers = settings.workers or usable_cores()
        blocks = self._feed.supply.block_sizes()
        lanes = self._feed.order_settings.lanes // self._ranks.world_size if self._feed.order_settings.shuffle else 8
        demand = Demand(
            slab_bytes=slab_bytes,
            block_bytes=int(blocks.mean()),
            largest_block_bytes=int(blocks.max()),
            blocks_in_use=max(1, min(lanes, len(blocks))),
            processes=workers if executor == "process" else 0,
        )
        shares = share_out(settings.memory_bytes or default_budget(), demand)
        return EnginePlan(
            executor,
            workers,
            settings.readers or READERS,
            shares.slabs,
            slab_bytes,
            shares.arena_bytes,
            settings.timeout_s,
        )

    def _steps(self, position: int) -> Steps:
        return count_steps(len(self._feed) - position, self.batch_size, self._ranks.world_size, self.drop_last)

    # -- the rest ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop workers and readers and give back their memory; the next pass starts them again."""
        if self._close is not None:
            self._close()
        self._running = self._delivery = self._close = None

    def __repr__(self) -> str:
        where = f"epoch {self._at.epoch}, {self._at.samples} of {len(self._feed)} samples"
        state = (
            "idle" if self._running is None else f"{self._running.plan.workers} workers ({self._running.plan.executor})"
        )
        return f"<Loader: {len(self._feed.dataset.paths)} shards, batches of {self.batch_size}; {where}; {state}>"


def _stop(slabs: Slabs, engine: Engine, feed: ShardFeed) -> None:
    """Nothing is left running or open; batches that somebody still holds stay valid."""
    slabs.close()
    engine.close()
    feed.close()


def _executor(settings: EngineSettings) -> Literal["process", "thread"]:
    """Processes, unless asked otherwise or there is nothing to gain: one core, or no GIL, or no way to start them."""
    import sys

    if settings.executor != "auto":
        if settings.executor == "process" and sys.platform == "win32":
            raise SettingError("worker processes are not available on Windows", advice="Use executor='thread'")
        return settings.executor
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return "thread" if sys.platform == "win32" or free_threaded or usable_cores() == 1 else "process"
