"""Door 1: `penstock.Loader`. Joins the flow (what is done to the data) and the engine (who does it, and when)."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Self

from penstock.core.cores import usable_cores
from penstock.core.stats import EngineStats, GpuTimes, LoaderStats
from penstock.data.batch.delivery import Delivery
from penstock.data.decode.decoder import Transform
from penstock.data.decode.map_samples import SampleTransform
from penstock.data.device.device_stage import DevicePlan
from penstock.data.device.prefetch import DevicePrefetch
from penstock.data.device.static_buffers import StaticBuffers
from penstock.data.fields.base import Field
from penstock.data.order.blocks import BLOCK_BYTES
from penstock.data.order.checkpoint import Position, read_state, write_state
from penstock.data.sources.map_dataset import DatasetSource
from penstock.data.sources.shards import Ids, OrderSettings, Shards
from penstock.engine.engine import Engine
from penstock.errors import PenstockError, SettingError
from penstock.options import BatchSettings, EngineSettings, ErrorSettings
from penstock.runtime.epochs import EpochRun, EpochSequence
from penstock.runtime.progress import DeliveryTimer, EpochBar, StatusTicker
from penstock.runtime.source_choice import SourceOptions, UserSampling, make_source
from penstock.runtime.start import RuntimeSettings, start_engine
from penstock.storage.shard_cache.cache_tier import CacheSettings

log = logging.getLogger("penstock")


class Loader:
    """Streams shards as batches.

        loader = penstock.Loader("sa1b/*.tar", fields={"image": penstock.Image(".jpg", size=1024)}, batch_size=24)
        for batch in loader:
            loss = step(batch["image"])

    A batch is a dict of tensors (lists for fields without a fixed shape) and has the samples' keys under "__key__".
    Each pass over the loader is the next epoch; the order of an epoch depends on nothing but the seed, the epoch and
    the shards. Shards may be a mapping, such as `{"web/*.tar": 3, "own/*.tar": 1}`: then an epoch is as long as all
    sources together, three samples of four come from the first, and each source is gone through as often as that takes.

    A sampler or batch_sampler may say which sample comes when, by its number: shard after shard, in the order of the
    index, as `ShardDataset` counts. It is taken to be this rank's own; to resume in the middle of an epoch, it must
    give the same order again. Samples that lie together are read together, but a sequential epoch reads faster.

    Instead of shards and fields there may be a map-style dataset, with a sampler, batch_sampler or collate_fn as a
    DataLoader takes them. Then batches are what `default_collate` or collate_fn makes of the dataset's samples.

    With `cache`, a folder on a fast local disk, shards are copied there aside while they are read where they lie: as
    many as fit into `cache_bytes`, or into four fifths of the room there. Later epochs and other ranks read the copies.

    With `static` every batch comes in the same tensors, for CUDA graphs, and is gone when the next one is asked for.
    """

    def __init__(
        self,
        shards: Shards | Any,
        fields: Mapping[str, Field] | None = None,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        device: str = "cpu",
        drop_last: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        transform: Transform | SampleTransform | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        static: bool = False,
        max_samples: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        workers: int | None = None,
        readers: int | None = None,
        executor: Literal["auto", "process", "thread"] = "auto",
        memory_bytes: int | None = None,
        timeout_s: float = 120.0,
        pin_workers: bool = False,
        page_cache: bool | None = None,
        cache: str | None = None,
        cache_bytes: int | None = None,
        on_error: Literal["raise", "skip", "replace"] = "raise",
        max_bad: float = 0.01,
        ledger: str | None = None,
        lanes: int = 64,
        block_bytes: int = BLOCK_BYTES,
        verbose: bool = False,
        progress: bool = False,
    ) -> None:
        self._batch = BatchSettings(batch_size, drop_last, device)
        self._engine_settings = EngineSettings(
            executor, workers, readers, memory_bytes, timeout_s, pin_workers, page_cache
        )
        errors = ErrorSettings(on_error, max_bad, ledger)
        self._batch_transform = batch_transform
        self._shuffle = shuffle
        self._brought = UserSampling.of(sampler, batch_sampler, collate_fn)
        wanted = SourceOptions(
            self._batch,
            self._engine_settings,
            errors,
            OrderSettings(shuffle, seed, lanes, block_bytes, max_samples),
            self._brought,
            transform,
            rank,
            world_size,
            CacheSettings.of(cache, cache_bytes),
        )
        if static and device == "numpy":
            raise SettingError("static keeps tensors where they are", advice='Use device="cpu" or "cuda"')
        self._plans = DevicePlan(fields, device, seed, transformed=transform is not None)
        self._feed = make_source(shards, self._plans.fields, wanted)
        stable = StaticBuffers() if static else None
        self._settings = RuntimeSettings(device, self._engine_settings, errors, self._plans, stable)
        self._at = Position()
        self._stopwatch = DeliveryTimer()
        self._ticker = StatusTicker() if verbose else None
        self._progress = progress
        self._running: Engine | None = None
        self._engine_stats = EngineStats()
        self._card_times: GpuTimes | None = None
        """Of the engine that ran last."""
        self._delivery: Delivery | None = None
        self._room = 0
        """Samples that fit into a slab of the engine that is running."""
        self._passes = EpochSequence(self._feed)
        self._pass_under_way: EpochRun | None = None
        self._asked_epoch: int | None = None
        self._close: weakref.finalize[[], Loader] | None = None

    @classmethod
    def from_config(
        cls, source: str | os.PathLike[str] | Mapping[str, Any], *, plan: str | os.PathLike[str] | None = None
    ) -> Self:
        """A loader as a YAML file or a mapping says; what may stand in it is in `penstock.config`.

        `plan` is a file of `penstock plan`: its `loader` section sets what the config leaves open. One made for
        another machine is used with a warning for each thing that is otherwise here.
        """
        from penstock.config import build

        return build(cls, source, plan)

    # -- what a DataLoader has ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._feed.count()

    @property
    def batch_size(self) -> int | None:
        """Samples per batch on this rank; None where a batch_sampler decides."""
        return self._batch.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether samples that do not fill a step on all ranks are left out."""
        return self._batch.drop_last

    # Which framework looks at which of these four is written in frameworks.py.

    @property
    def num_workers(self) -> int:
        """Processes or threads that decode."""
        running = self._running
        return running.stats().workers if running is not None else self._engine_settings.workers or usable_cores()

    @property
    def dataset(self) -> Any:
        """The map-style dataset; of shards, something with their length: the samples of an epoch, over all ranks."""
        from penstock.frameworks import SampleCount

        return self._feed.dataset if isinstance(self._feed, DatasetSource) else SampleCount(len(self._feed))

    @property
    def sampler(self) -> Any:
        """This rank's share of the epoch's order, as a torch sampler; its `set_epoch` is the loader's."""
        from penstock.frameworks import EpochSampler, SequentialEpochSampler

        if self._brought.sampler is not None:
            return self._brought.sampler
        if self._brought.batch_sampler is not None:
            return getattr(self._brought.batch_sampler, "sampler", None)

        def batches() -> Iterator[Ids]:
            return (portion.samples for portion in self._feed.portions(self.epoch, 0))

        kind = EpochSampler if self._shuffle else SequentialEpochSampler
        return kind(batches, self._feed.per_rank(), self.set_epoch)

    @property
    def batch_sampler(self) -> Any:
        """The same, cut into batches."""
        from torch.utils.data import BatchSampler

        if self._brought.batch_sampler is not None:
            return self._brought.batch_sampler
        assert self.batch_size is not None
        return BatchSampler(self.sampler, self.batch_size, self.drop_last)

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
        self._asked_epoch = None  # asked for before: the last word counts

    # -- a pass ------------------------------------------------------------------------------------------------

    def _pass(self) -> Iterator[Any]:
        self._take_asked_epoch()  # one that was set while the pass before was still held
        if self._running is not None and self._running.failed:
            self.close()  # it failed at what nobody had asked for yet: that is tried again
        epoch = self._at.epoch
        this, begun = self._passes.ask(epoch, self._at.samples)
        ahead = this.ahead
        self._pass_under_way = this
        finished = False
        bar = EpochBar(epoch, self._at.samples, len(self._feed)) if self._progress else None
        self._stopwatch.begin()
        try:
            while not ahead.over:  # once, unless a batch comes that is larger than all before it
                engine, delivery = self._start(self.batch_size or ahead.largest)
                if not begun:
                    this.begin(engine, self._room)
                begun = False
                coming = DevicePrefetch(ahead, delivery, engine.wait_for, engine.has)
                asked = 0
                while not coming.over:
                    self._check_under_way(this)
                    if (portion := coming.wait()) is None:
                        break
                    self._stopwatch.waited()
                    batch = coming.hand_over()
                    if self._batch_transform is not None:
                        batch = self._batch_transform(batch)
                    self._at = Position(epoch, portion.end, under_way=True)
                    asked += len(portion.samples)
                    finished = _was_last(coming, delivery, asked)
                    self._passes.look_further(this, self._asked_epoch, engine, self._room)
                    self._tell(len(portion.samples), bar)
                    yield batch
                    del batch  # else its slab would be held here while the next one is waited for
                    self._stopwatch.returned()
            finished = True
            self._at = Position(epoch + 1)
        finally:
            if bar is not None:
                bar.close()
            if self._pass_under_way is this:
                self._leave(finished)

    def _tell(self, samples: int, bar: EpochBar | None) -> None:
        """A batch goes out: count it, and say so where that is wanted."""
        self._stopwatch.delivered(samples)
        if bar is not None:
            bar.at(self._at.samples)
        if self._ticker is not None and self._ticker.due:
            self._ticker.show(self.stats())

    def _check_under_way(self, this: EpochRun) -> None:
        if self._pass_under_way is not this:
            raise PenstockError("another pass over this loader has begun", stage="deliver")

    def _leave(self, finished: bool) -> None:
        """A pass has ended; one that was left early takes the engine with it."""
        self._pass_under_way = None
        self._take_asked_epoch()
        if not finished:
            self.close()

    def _take_asked_epoch(self) -> None:
        asked, self._asked_epoch = self._asked_epoch, None
        if asked is not None:
            self._at = Position(asked)

    def _start(self, room: int) -> tuple[Engine, Delivery]:
        """An engine whose slabs have room for that many samples."""
        if self._running is not None and self._room < room:
            log.info("a batch of %d samples is larger than all before it: starting again with larger slabs", room)
            self.close()
            room += room // 2  # so that sizes that creep up do not make us start again and again
        if self._running is None or self._delivery is None:
            running = start_engine(self._feed, self._settings, room)
            self._close = weakref.finalize(self, running.stop)
            self._running, self._delivery, self._room = running.engine, running.delivery, running.room
        self._delivery.begin()
        return self._running, self._delivery

    # -- the rest ----------------------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """What every hop has done so far, and how the engine stands; subtract two for what happened between."""
        engine = self._running.stats() if self._running is not None else self._engine_stats
        bad = self._delivery.bad if self._delivery is not None else 0
        watch, at, card = self._stopwatch, self._at, self.card_times
        return LoaderStats(
            at.epoch, at.samples, len(self._feed), watch.samples, watch.batches, bad, *watch.hops(), engine, card
        )

    @property
    def card_times(self) -> GpuTimes | None:
        """Where the GPU's time went between steps, on its own clock; None where batches stay on the CPU."""
        return self._delivery.card_times if self._delivery is not None else self._card_times

    def close(self) -> None:
        """Stop workers and readers and give back their memory; the next pass starts them again."""
        last = self.stats()
        self._engine_stats, self._card_times = last.engine, last.gpu_times
        self._passes.forget()
        stop, self._close = self._close, None
        self._running = self._delivery = None
        if stop is not None:
            stop()

    def __repr__(self) -> str:
        where = f"epoch {self._at.epoch}, {self._at.samples} of {len(self._feed)} samples"
        running = self._running
        state = "idle" if running is None else f"{running.stats().workers} workers ({running.plan.executor})"
        size = f"batches of {self.batch_size}" if self.batch_size is not None else "batches of a batch_sampler"
        return f"<Loader: {self._feed!r}, {size}; {where}; {state}>"


def _was_last(coming: DevicePrefetch, delivery: Delivery, asked: int) -> bool:
    """Whether nothing follows, and then all is accounted for. Asked ahead: frameworks count batches, and stop there."""
    if coming.over:
        delivery.check_books(asked)
    return coming.over
