"""What a sampler's order costs over shards: P×K batches, read by index, beside reading from front to back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

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
COLUMNS = (
    "order",
    "samples/s",
    "around the page cache",
    "reads a batch",
    "bytes a read",
    "bytes read, of those wanted",
)
NOTE = (
    f"Epochs of {SAMPLES:,} crops in 8 shards, batches of {BATCH}, no training; samples/s with the shards in "
    "the page cache and, to see the storage, with direct reads around it. Reads are requests to the storage: a P×K "
    "batch takes its samples from anywhere, each where it lies, in the order of their place, and near ones in one read."
)


class Reads(NamedTuple):
    """Of a batch, in the mean."""

    count: float
    read_bytes: float
    wanted_bytes: float
    """Of its samples' parts, each sample once."""

    @property
    def excess(self) -> float:
        """Bytes read for a byte that is wanted."""
        return self.read_bytes / self.wanted_bytes


@dataclass
class Way:
    """A loader that is timed epoch after epoch."""

    loader: Loader
    lengths: dict[str, float]
    """Of each sample's parts together, in bytes."""
    samples: int = 0
    batches: int = 0
    wanted: float = 0.0
    """Bytes of what came: a sampler takes some samples more often than others, and those need not be of mean length."""

    def epoch(self) -> float:
        """Samples per second."""
        came: list[list[str]] = []

        def run() -> None:
            for batch in self.loader:
                came.append(batch["__key__"])

        taken = seconds(run)
        samples = sum(map(len, came))
        self.samples += samples
        self.batches += len(came)
        self.wanted += sum(self.lengths[key] for keys in came for key in set(keys))
        return samples / taken

    def reads(self) -> Reads:
        """Since it was made."""
        engine, feed = self.loader.stats().engine, self.loader._source
        counted = feed.block_source.counts if isinstance(feed, SampledShardSource) else engine
        return Reads(counted.reads / self.batches, counted.bytes_read / self.batches, self.wanted / self.batches)


def measure(samples: int = SAMPLES, rounds: int = ROUNDS) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(prefix="penstock-reading-") as scratch:
        shards = data.make(Path(scratch), samples)
        dataset = ShardDataset(shards, FIELDS)
        table = read_metadata(dataset, ".json")
        known = dataset.source.dataset
        columns = zip(known.indexes, known.parts, strict=True)
        lengths = {
            key: float(length)
            for index, parts in columns
            for key, length in zip(index.keys, index.lengths[parts].sum(axis=1), strict=True)
        }

        def sampler() -> PKSampler:
            return PKSampler(table, data.PER_BATCH, data.INSTANCES, ensure="rgb", prefer_complete=True)

        orders: dict[str, Callable[[bool], Loader]] = {
            "front to back": lambda cached: Loader(shards, FIELDS, BATCH, reading=ReadOptions(page_cache=cached)),
            "the loader's own shuffle": lambda cached: Loader(
                shards, FIELDS, BATCH, shuffle=True, reading=ReadOptions(page_cache=cached)
            ),
            "P×K": lambda cached: Loader(
                shards, FIELDS, batch_sampler=sampler(), reading=ReadOptions(page_cache=cached)
            ),
        }
        warm, cold = ({name: Way(make(cached), lengths) for name, make in orders.items()} for cached in (True, False))
        try:
            rates, around = _timed(warm, rounds), _timed(cold, rounds)
            yield from _lines(warm, rates, around)
            rows = [_row(name, warm[name], rates[name], around[name]) for name in orders]
            yield Table("Reading in a sampler's order", COLUMNS, rows, NOTE)
        finally:
            for way in (*warm.values(), *cold.values()):
                way.loader.close()


def _timed(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Each way's rates; an epoch before them starts the workers."""
    for way in ways.values():
        way.epoch()
    return dict(zip(ways, in_turns([way.epoch for way in ways.values()], rounds), strict=True))


def _lines(ways: dict[str, Way], rates: dict[str, list[float]], around: dict[str, list[float]]) -> Iterator[Line]:
    plain, picked = "front to back", "P×K"
    for what, figures, target in (("in the page cache", rates, 0.8), ("around the page cache", around, 0.5)):
        yield Line(
            f"P×K over shards, {what}: samples/s",
            f"{median(figures[picked]):,.0f}",
            f"{plain}: {median(figures[plain]):,.0f}",
            median_ratio(figures[picked], figures[plain]),
            target,
            "at least",
        )
    found = ways[picked].reads()
    yield Line(
        "P×K over shards: reads of a sample",
        f"{found.count:.1f} a batch",
        f"{BATCH} samples",
        found.count / BATCH,
        1.0,
        "at most",
    )
    yield Line(
        "P×K over shards: bytes read, of those wanted",
        f"{format_bytes(found.read_bytes)} a batch",
        f"its parts: {format_bytes(found.wanted_bytes)}",
        found.excess,
        1.5,
        "at most",
    )


def _row(name: str, way: Way, rates: list[float], around: list[float]) -> tuple[str, ...]:
    found = way.reads()
    each = format_bytes(found.read_bytes / found.count)
    return name, f"{median(rates):,.0f}", f"{median(around):,.0f}", f"{found.count:.2f}", each, f"{found.excess:.2f}"
