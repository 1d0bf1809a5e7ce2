"""`penstock.Loader`: joins a source (samples, their order, their decoding) and the engine that runs the work."""

from __future__ import annotations

import inspect
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from penstock.core.contracts import BatchRequest
from penstock.core.cores import usable_cores
from penstock.core.stats import EngineStats, GpuTimes, LoaderStats
from penstock.core.types import Ids
from penstock.data.batch.bad_samples import check_bad_fraction, list_bad_samples
from penstock.data.batch.delivery import SKIPPED, Delivery
from penstock.data.decode.dataset_program import SampleTransform
from penstock.data.decode.decoder import Transform
from penstock.data.decode.rng import batch_rng
from penstock.data.device.device_stage import DevicePlan
from penstock.data.device.prefetch import DevicePrefetch
from penstock.data.device.static_buffers import StaticBuffers
from penstock.data.fields.base import Field
from penstock.data.order.checkpoint import Position, read_state, write_state
from penstock.data.read.sample_index import SampleInfo
from penstock.data.sources.map_dataset import DatasetSource
from penstock.data.sources.shard_groups import Shards
from penstock.data.sources.shards import Outputs
from penstock.engine.engine import Engine
from penstock.errors import PenstockError, SettingError
from penstock.options import (
    CacheOptions,
    EngineOptions,
    ErrorOptions,
    ErrorPolicy,
    LoaderOptions,
    ReadOptions,
    cache_options,
    check_torch_settings,
    error_options,
    in_process,
    split_samplers,
)
from penstock.runtime.epochs import EpochRun, EpochSequence
from penstock.runtime.progress import DeliveryTimer, EpochBar, StatusTicker
from penstock.runtime.sources import make_source
from penstock.runtime.start import start_engine

if TYPE_CHECKING:
    import torch

    Device: TypeAlias = str | torch.device
else:
    Device = str  # a torch.device is accepted too; torch is not imported to say so

log = logging.getLogger("penstock")


class Loader:
    """Streams shards, or the samples of a map-style dataset, as batches.

        loader = penstock.Loader("sa1b/*.tar", fields={"image": penstock.Image(".jpg", size=1024)}, batch_size=24)
        for batch in loader:
            loss = step(batch["image"])

    A batch of shards is a dict of tensors (lists for fields without a fixed shape), with the samples' keys under
    "__key__", and under "__padding__" a flag for each sample that only fills the batch. A batch of a dataset is what
    `default_collate` or `collate_fn` makes of its samples. Each iteration over the loader is the next epoch. The order
    of an epoch depends only on the seed, the epoch and the shards.

    Everything after `batch_size` is given by name. Settings that few users need are in four groups: `reading`, `cache`,
    `errors` and `engine`.

    Args:
        shards (path, list of paths, mapping, or map-style dataset): The data. A path may be a pattern (`"web/*.tar"`)
            or a URL of an object store. A mapping of paths to weights, such as `{"web/*.tar": 3, "own/*.tar": 1}`,
            mixes sources: three samples of four come from the first one, an epoch is as long as all sources together,
            and each source is repeated as often as that takes.
        fields (mapping of names to fields, default None): The entries of a batch, and from which part of a sample each
            of them is made, for example `{"image": Image(".jpg", size=224)}`. Required for shards, refused for a
            dataset.
        batch_size (int, default None): Samples per batch on this rank. Required, except with a `batch_sampler`.
        shuffle (bool, default False): Whether each epoch has a new random order. Set it for training.
        seed (int, default 0): Seed of the order and of random transforms. Change it for another run of the same
            experiment.
        drop_last (bool, default False): Whether samples that do not fill a step on all ranks are left out. Otherwise
            the last step is padded with the first samples of the epoch, which "__padding__" marks. Set it where every
            step must have distinct samples.
        sampler (iterable of sample numbers, default None): The order of this rank's samples, in place of `shuffle`.
            Samples of shards are numbered shard after shard, in the order of the index, as `ShardDataset` counts them.
            To resume in the middle of an epoch, the sampler must give the same order again: `state_dict` holds its
            random state. Neighbouring samples are read together, but an epoch in the loader's own order reads faster.
        batch_sampler (iterable of lists of sample numbers, default None): The same for whole batches, in place of
            `batch_size`, `shuffle`, `sampler` and `drop_last`.
        filter (callable, default None): For shards, a function of a sample's `key`, `shard` and `sizes` (the bytes of
            its parts, by suffix) that returns whether the sample is used. It is called once for each sample, before
            anything is read. `stats().filtered` counts the samples that it rejects.
        collate_fn (callable, default None): Makes a batch of a list of samples. It runs in the workers, and the batch
            is delivered as it returns it. A batch is then made by one worker, since only the function knows how samples
            are combined. A sample of shards is a dict of its fields, with its key under "__key__" and "__padding__".
            None: the fields of shards say how they batch, and samples of a dataset are combined as by torch's
            `default_collate`.
        transform (callable, default None): For shards, a function of (dict of arrays, random generator) that returns a
            dict; for a dataset, a function of (sample, random generator). It runs in the workers. The generator is
            seeded by `seed`, epoch and sample, so augmentation does not depend on the number of workers or ranks. The
            dict of a sample of shards also has its key under "__key__" and, under "__geometry__", the geometry of each
            image by field name. Numbers, arrays and tensors that the function returns are stacked.
        outputs (mapping, default None): Shape and dtype of what `transform` returns, by name, such as
            `{"image": ((3, 224, 224), "float32"), "points": "ragged"}`; ragged arrays are delivered as a list. What is
            not named is found by trying: arrays must then have the shape that the first sample has.
        batch_transform (callable, default None): A function of the delivered batch whose result is delivered in its
            place. It runs in the training loop's thread; use it for what cannot be done sample by sample. If it has a
            parameter named `rng`, it gets a `numpy.random.Generator` that is seeded by `seed`, epoch and batch.
        device (str or torch.device, default "cpu"): Where batches are delivered. With "cuda" or "cuda:1" they are
            copied from pinned memory beside the training step. "numpy" delivers arrays and does not import torch.
        max_samples (int, default None): The most samples of an epoch, over all ranks. None: all. Set it for a quick
            trial.
        num_workers (int, default None): Processes or threads that decode. None: up to 8 at first, and up to the number
            of cores (less one where there are more than four) if decoding is the bottleneck. 0: one thread of this
            process. Set it to leave cores to other work.
        rank (int, default None): Index of this process among those that share the data. None: as torch.distributed, the
            launcher's environment or Slurm report it. Set it with `world_size` where several ranks need the same
            samples because they share a model.
        world_size (int, default None): Number of processes that share the data; given with `rank`, or not at all.
        reading (ReadOptions, default None): How shards are read: `num_readers`, `page_cache`, `lanes`, `block_bytes`.
        cache (str, path or CacheOptions, default None): A folder on a fast local disk in which copies of shards are
            kept, or the folder with its size. Set it for shards on an object store or a slow disk. None: no copies.
        on_error ("raise", "skip" or "replace", default None): A shorthand for `errors=ErrorOptions(on_error=…)`: what
            is done about a bad sample. None: "raise".
        errors (ErrorOptions, default None): What is done about bad samples: `on_error`, `max_bad_fraction`,
            `bad_samples_path`.
        engine (EngineOptions, default None): How the work is run: `executor`, `memory_bytes`, `timeout_s`,
            `worker_affinity`, `static_buffers`.
        progress (bool or "lines", default False): Whether a progress bar is shown for each epoch on stderr. "lines"
            prints a status line every five seconds instead, with the rate and what each stage of the pipeline did.
        prefetch_factor (int, default None): Refused: as many batches are made ahead as `memory_bytes` has space for.
        pin_memory (bool, default None): Accepted if it says what holds anyway: memory is pinned if and only if `device`
            is a GPU.
        persistent_workers (bool, default None): Accepted if True: workers always live from epoch to epoch.
    """

    def __init__(
        self,
        shards: Shards | Any,
        fields: Mapping[str, Field] | None = None,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        filter: Callable[[SampleInfo], bool] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        transform: Transform | SampleTransform | None = None,
        outputs: Outputs | None = None,
        batch_transform: Callable[..., Any] | None = None,
        device: Device = "cpu",
        max_samples: int | None = None,
        num_workers: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        reading: ReadOptions | None = None,
        cache: str | os.PathLike[str] | CacheOptions | None = None,
        on_error: ErrorPolicy | None = None,
        errors: ErrorOptions | None = None,
        engine: EngineOptions | None = None,
        progress: bool | Literal["lines"] = False,
        prefetch_factor: int | None = None,
        pin_memory: bool | None = None,
        persistent_workers: bool | None = None,
    ) -> None:
        check_torch_settings(str(device), prefetch_factor, pin_memory, persistent_workers)
        sampler, batch_sampler = split_samplers(sampler, batch_sampler)
        num_workers, engine = in_process(num_workers, engine or EngineOptions())
        self._options = LoaderOptions(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            max_samples=max_samples,
            sampler=sampler,
            batch_sampler=batch_sampler,
            filter=filter,
            collate_fn=collate_fn,
            transform=transform,
            outputs=outputs or {},
            device=str(device),
            num_workers=num_workers,
            rank=rank,
            world_size=world_size,
            reading=reading or ReadOptions(),
            cache=cache_options(cache),
            errors=error_options(on_error, errors),
            engine=engine,
        )
        self._device_plan = DevicePlan(fields, self._options.device, seed, transformed=transform is not None)
        self._source = make_source(shards, self._device_plan.fields, self._options)
        self._batch_transform = batch_transform
        self._draws_for_batch = batch_transform is not None and _has_parameter(batch_transform, "rng")
        self._static_buffers = StaticBuffers() if engine.static_buffers else None
        self._position = Position()
        self._timer = DeliveryTimer()
        self._ticker = StatusTicker() if progress == "lines" else None
        self._show_bar = progress is True
        self._engine: Engine | None = None
        self._delivery: Delivery | None = None
        self._slab_samples = 0
        """Samples that fit into a slab of the running engine."""
        self._stop_engine: weakref.finalize[[], Loader] | None = None
        self._last_engine_stats = EngineStats()
        self._last_gpu_times: GpuTimes | None = None
        """These two are those of the engine that ran last."""
        self._epochs = EpochSequence(self._source)
        self._current: EpochRun | None = None
        """The epoch that is being delivered."""
        self._requested_epoch: int | None = None
        """An epoch that was set while another one is being delivered."""

    @classmethod
    def from_config(
        cls, source: str | os.PathLike[str] | Mapping[str, Any], *, plan: str | os.PathLike[str] | None = None
    ) -> Self:
        """Make a loader from a YAML file or a mapping; `penstock.config` describes its keys.

        `plan` is a file that `penstock plan` wrote: its `loader` section sets what the config leaves open. A plan that
        was made for another machine is used, with a warning for each difference.
        """
        from penstock.config import build

        return build(cls, source, plan)

    # -- attributes of torch's DataLoader; frameworks.py lists which framework reads which -----------------------------

    def __len__(self) -> int:
        return self._source.num_batches()

    @property
    def batch_size(self) -> int | None:
        """Samples per batch on this rank; None where a batch_sampler decides."""
        return self._options.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether samples that do not fill a step on all ranks are left out."""
        return self._options.drop_last

    @property
    def num_workers(self) -> int:
        """Processes or threads that decode."""
        engine = self._engine
        return engine.stats().workers if engine is not None else self._options.num_workers or usable_cores()

    @property
    def dataset(self) -> Any:
        """The map-style dataset; for shards, an object with their length: the samples of an epoch, over all ranks."""
        from penstock.frameworks import SampleCount

        source = self._source
        return source.dataset if isinstance(source, DatasetSource) else SampleCount(len(source))

    @property
    def sampler(self) -> Any:
        """This rank's share of the epoch's order, as a torch sampler; its `set_epoch` is the loader's."""
        from penstock.frameworks import EpochSampler, SequentialEpochSampler

        options = self._options
        if options.sampler is not None:
            return options.sampler
        if options.batch_sampler is not None:
            return getattr(options.batch_sampler, "sampler", None)

        def batches() -> Iterator[Ids]:
            return (request.samples for request in self._source.batch_requests(self.epoch, 0, self._position.order))

        kind = EpochSampler if options.shuffle else SequentialEpochSampler
        return kind(batches, self._source.samples_per_rank(), self.set_epoch)

    @property
    def batch_sampler(self) -> Any:
        """The same order, cut into batches."""
        from torch.utils.data import BatchSampler

        if self._options.batch_sampler is not None:
            return self._options.batch_sampler
        assert self.batch_size is not None
        return BatchSampler(self.sampler, self.batch_size, self.drop_last)

    # -- epochs and resuming -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that is being delivered, or that the next iteration delivers."""
        return self._position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make that epoch the next one, from its start. Setting the current or the resumed epoch changes nothing."""
        if epoch < 0:
            raise SettingError(f"epoch {epoch} is below 0")
        if self._current is not None:
            self._requested_epoch = epoch if epoch != self._position.epoch else None
        elif epoch != self._position.epoch or self._position.in_progress:
            self._position = Position(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain numbers and strings; it is the same on every rank, except with a sampler.

        With a sampler it has the sampler's random state too, and what the sampler's own `state_dict` returns.
        """
        self._source.warn_if_unrepeatable()
        position = self._position
        if position.order is None:
            position = replace(position, order=self._source.next_order())
        return write_state(position, self._source.identity())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at that position: the next iteration starts with the very next sample."""
        self._position = read_state(state, self._source.identity())
        self._requested_epoch = None  # an epoch that was set earlier: the later call counts

    # -- delivering an epoch -------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        if self._position.in_progress:  # the last epoch was left early: this one is a new epoch
            self._position = Position(self._position.epoch + 1)
        return self._deliver_epoch()

    def _deliver_epoch(self) -> Iterator[Any]:
        self._apply_requested_epoch()  # one that was set while the iterator before was still alive
        if self._engine is not None and self._engine.failed:
            self.close()  # it failed at an epoch that was begun ahead of its request: try that epoch again
        epoch = self._position.epoch
        current, begun = self._epochs.start(epoch, self._position.samples, self._position.order)
        self._position = replace(self._position, order=current.request.order)
        lookahead = current.lookahead
        self._current = current
        finished = False
        self._report_incomplete()
        bar = EpochBar(epoch, self._position.samples, len(self._source)) if self._show_bar else None
        self._timer.begin()
        try:
            while not lookahead.exhausted:  # runs once, unless a batch comes that is larger than all before it
                engine, delivery = self._start(self.batch_size or lookahead.largest_batch)
                if not begun:
                    current.begin(engine, self._slab_samples)
                begun = False
                prefetch = DevicePrefetch(lookahead, delivery, engine.wait_for, engine.has)
                requested = 0
                while not prefetch.exhausted:
                    self._check_current(current)
                    if (request := prefetch.wait()) is None:
                        break
                    self._timer.waited()
                    batch = prefetch.deliver()
                    if self._batch_transform is not None and batch is not SKIPPED:
                        batch = self._batch_transform(batch, **self._batch_draws(request))
                    self._position = Position(epoch, request.end, in_progress=True, order=current.request.order)
                    requested += len(request.samples)
                    finished = _was_last(prefetch, delivery, requested)
                    self._epochs.begin_next(current, self._requested_epoch, engine, self._slab_samples)
                    if batch is SKIPPED:
                        continue
                    self._report(len(request.samples), bar)
                    yield batch
                    del batch  # otherwise its slab would be held here during the wait for the next batch
                    self._timer.returned()
            finished = True
            self._position = Position(epoch + 1)
        finally:
            if bar is not None:
                bar.close()
            if self._current is current:
                self._end_epoch(finished)

    def _batch_draws(self, request: BatchRequest) -> dict[str, np.random.Generator]:
        """Return what a batch_transform gets besides the batch: a random generator, if it has a parameter for one."""
        if not self._draws_for_batch:
            return {}
        numbers = request.samples if request.rng_ids is None else request.rng_ids
        return {"rng": batch_rng(self._options.seed, request.epoch, numbers)}

    def _report_incomplete(self) -> None:
        """List the samples that are bad before anything is read: those that lack a part. An error if too many do."""
        incomplete = self._source.incomplete
        if incomplete:
            list_bad_samples(incomplete, self._options.errors)
            total = len(incomplete) + self._source.whole_samples
            check_bad_fraction(len(incomplete), total, incomplete[0], self._options.errors)

    def _report(self, samples: int, bar: EpochBar | None) -> None:
        """Count a batch that is about to be delivered, and show progress where the user has requested it."""
        self._timer.delivered(samples)
        if bar is not None:
            bar.update(self._position.samples)
        if self._ticker is not None and self._ticker.due:
            self._ticker.show(self.stats())

    def _check_current(self, current: EpochRun) -> None:
        if self._current is not current:
            raise PenstockError("another iteration over this loader has begun", stage="deliver")

    def _end_epoch(self, finished: bool) -> None:
        """Note that an epoch has ended; if the training loop left it early, stop the engine."""
        self._current = None
        self._apply_requested_epoch()
        if not finished:
            self.close()

    def _apply_requested_epoch(self) -> None:
        requested, self._requested_epoch = self._requested_epoch, None
        if requested is not None:
            self._position = Position(requested)

    # -- the engine ----------------------------------------------------------------------------------------------------

    def _start(self, samples: int) -> tuple[Engine, Delivery]:
        """Return an engine whose slabs hold batches of that many samples; start one if there is none."""
        if self._engine is not None and self._slab_samples < samples:
            log.info("a batch of %d samples is larger than all before it: starting again with larger slabs", samples)
            self.close()
            samples += samples // 2  # batch sizes that grow slowly must not cause a restart each time
        if self._engine is None or self._delivery is None:
            running = start_engine(self._source, self._options, self._device_plan, self._static_buffers, samples)
            self._stop_engine = weakref.finalize(self, running.stop)
            self._engine, self._delivery, self._slab_samples = running.engine, running.delivery, running.slab_samples
        self._delivery.begin_epoch()
        return self._engine, self._delivery

    def stats(self) -> LoaderStats:
        """Return counters of every hop, and the state of the engine. The difference of two covers the time between."""
        engine = self._engine.stats() if self._engine is not None else self._last_engine_stats
        bad = len(self._source.incomplete) + (self._delivery.bad if self._delivery is not None else 0)
        position, timer = self._position, self._timer
        return LoaderStats(
            position.epoch,
            position.samples,
            len(self._source),
            timer.samples,
            timer.batches,
            bad,
            *timer.hops(),
            engine,
            self.gpu_times,
            self._source.filtered,
        )

    @property
    def gpu_times(self) -> GpuTimes | None:
        """The GPU's time between steps, by its own clock; None where batches stay on the CPU."""
        return self._delivery.gpu_times if self._delivery is not None else self._last_gpu_times

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop workers and readers and release their memory; the next iteration starts them again."""
        last = self.stats()
        self._last_engine_stats, self._last_gpu_times = last.engine, last.gpu_times
        self._epochs.forget_prediction()
        stop, self._stop_engine = self._stop_engine, None
        self._engine = self._delivery = None
        if stop is not None:
            stop()

    def __repr__(self) -> str:
        where = f"epoch {self._position.epoch}, {self._position.samples} of {len(self._source)} samples"
        engine = self._engine
        state = "idle" if engine is None else f"{engine.stats().workers} workers ({engine.plan.executor})"
        size = f"batches of {self.batch_size}" if self.batch_size is not None else "batches of a batch_sampler"
        return f"<Loader: {self._source!r}, {size}; {where}; {state}>"


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function written in C
        return False


def _was_last(prefetch: DevicePrefetch, delivery: Delivery, requested: int) -> bool:
    """Return whether no batch follows; then check that all samples are accounted for.

    This is checked before the last batch is delivered, because frameworks count batches and stop after the last one.
    """
    if prefetch.exhausted:
        delivery.check_counts(requested)
    return prefetch.exhausted
