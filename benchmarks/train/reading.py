"""Time reading from shards in a sampler's order: P×K batches, read by index, compared with reading in shard order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.document import Finding
from benchmarks.result import Line, Table, in_turns, median_ratio, seconds
from benchmarks.train import data
from benchmarks.train.samplers import BATCH, FIELDS
from penstock.core.format import format_bytes
from penstock.data.sources.sampled_shards import SampledShardSource
from penstock.datasets import ShardDataset
from penstock.loader import Loader
from penstock.options import ReadOptions
from penstock.samplers import PKSampler, read_metadata

ROUNDS = 3
SAMPLES = 6400
SHARD_ORDER, PK_ORDER = "shard order", "P×K"
COLUMNS = (
    "order",
    "samples/s",
    "without the page cache",
    "reads per batch",
    "bytes per read",
    "bytes read per byte needed",
)
NOTE = (
    f"Epochs of {SAMPLES:,} crops in 8 shards, batches of {BATCH}, no training. Samples/s are measured with the shards "
    "in the page cache and, to include the storage, with direct reads that bypass it. Reads are requests to the "
    "storage. The samples of a P×K batch may lie anywhere in the shards: they are read by offset, in the order of "
    "their offsets, and samples that are close to each other in one read."
)


class Reads(NamedTuple):
    """Reads of a batch, as means over all batches."""

    requests: float
    """Requests to the storage."""
    read_bytes: float
    needed_bytes: float
    """Bytes of the parts of the samples, each sample once."""

    @property
    def excess(self) -> float:
        """Bytes read per byte needed."""
        return self.read_bytes / self.needed_bytes


@dataclass
class TimedLoader:
    """A loader in one order, timed epoch by epoch."""

    loader: Loader
    lengths: dict[str, int]
    """Bytes of the parts of each sample together, by key."""
    samples: int = 0
    batches: int = 0
    needed_bytes: int = 0
    """Bytes of the delivered samples. They are summed because a sampler may use some samples more often than others,
    and these need not be of mean length."""

    def time_epoch(self) -> float:
        """Iterate over one epoch and return its samples per second."""
        batch_keys: list[list[str]] = []

        def run() -> None:
            for batch in self.loader:
                batch_keys.append(batch["__key__"])

        duration_s = seconds(run)
        samples = sum(map(len, batch_keys))
        self.samples += samples
        self.batches += len(batch_keys)
        self.needed_bytes += sum(self.lengths[key] for keys in batch_keys for key in set(keys))
        return samples / duration_s

    def reads(self) -> Reads:
        """Return the means over all batches so far."""
        engine, source = self.loader.stats().engine, self.loader._source
        counts = source.block_source.counts if isinstance(source, SampledShardSource) else engine
        return Reads(counts.reads / self.batches, counts.bytes_read / self.batches, self.needed_bytes / self.batches)


def measure(samples: int = SAMPLES, rounds: int = ROUNDS) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(prefix="penstock-reading-") as scratch:
        shards = data.make(Path(scratch), samples)
        dataset = ShardDataset(shards, FIELDS)
        table = read_metadata(dataset, ".json")
        sample_index = dataset.source.sample_index
        keys = sample_index.keys(np.arange(len(sample_index)))
        lengths = dict(zip(keys, sample_index.wanted_bytes().tolist(), strict=True))

        def sampler() -> PKSampler:
            return PKSampler(table, data.PER_BATCH, data.INSTANCES, ensure="rgb", prefer_complete=True)

        orders: dict[str, Callable[[bool], Loader]] = {
            SHARD_ORDER: lambda cached: Loader(shards, FIELDS, BATCH, reading=ReadOptions(page_cache=cached)),
            "the loader's own shuffle": lambda cached: Loader(
                shards, FIELDS, BATCH, shuffle=True, reading=ReadOptions(page_cache=cached)
            ),
            PK_ORDER: lambda cached: Loader(
                shards, FIELDS, batch_sampler=sampler(), reading=ReadOptions(page_cache=cached)
            ),
        }
        cached, direct = (
            {name: TimedLoader(make(page_cache), lengths) for name, make in orders.items()}
            for page_cache in (True, False)
        )
        try:
            cached_rates, direct_rates = _time_in_turns(cached, rounds), _time_in_turns(direct, rounds)
            yield from _lines(cached[PK_ORDER].reads(), cached_rates, direct_rates)
            rows = [_row(name, cached[name].reads(), cached_rates[name], direct_rates[name]) for name in orders]
            yield Table("Reading in a sampler's order", COLUMNS, rows, NOTE)
        finally:
            for timed in (*cached.values(), *direct.values()):
                timed.loader.close()


def _time_in_turns(loaders: dict[str, TimedLoader], rounds: int) -> dict[str, list[float]]:
    """Return the samples per second of each round by order; an epoch before the first round starts the workers."""
    for timed in loaders.values():
        timed.time_epoch()
    return dict(zip(loaders, in_turns([timed.time_epoch for timed in loaders.values()], rounds), strict=True))


def _lines(reads: Reads, cached_rates: dict[str, list[float]], direct_rates: dict[str, list[float]]) -> Iterator[Line]:
    """Yield the lines of the P×K order; `reads` are those of its batches."""
    for what, rates, target in (
        ("in the page cache", cached_rates, 0.8),
        ("without the page cache", direct_rates, 0.5),
    ):
        yield Line(
            f"P×K over shards, {what}: samples/s",
            f"{median(rates[PK_ORDER]):,.0f}",
            f"{SHARD_ORDER}: {median(rates[SHARD_ORDER]):,.0f}",
            median_ratio(rates[PK_ORDER], rates[SHARD_ORDER]),
            target,
            "at least",
        )
    yield Line(
        "P×K over shards: reads per sample",
        f"{reads.requests:.1f} per batch",
        f"{BATCH} samples",
        reads.requests / BATCH,
        1.0,
        "at most",
    )
    yield Line(
        "P×K over shards: bytes read per byte needed",
        f"{format_bytes(reads.read_bytes)} per batch",
        f"its parts: {format_bytes(reads.needed_bytes)}",
        reads.excess,
        1.5,
        "at most",
    )


def _row(name: str, reads: Reads, cached_rates: list[float], direct_rates: list[float]) -> tuple[str, ...]:
    rates = f"{median(cached_rates):,.0f}", f"{median(direct_rates):,.0f}"
    return name, *rates, f"{reads.requests:.2f}", format_bytes(reads.read_bytes / reads.requests), f"{reads.excess:.2f}"
