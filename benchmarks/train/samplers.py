"""Time reading metadata and drawing batches, compared with the uncached sampler of field report 003."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.document import Finding
from benchmarks.result import Line, Table, in_turns, median_ratio, seconds
from benchmarks.train import data
from benchmarks.train.uncached_sampler import LooseFiles, UncachedModalAwarePKSampler
from penstock.data.fields import Image
from penstock.datasets import ShardDataset
from penstock.samplers import BalancedSampler, BucketSampler, MetadataTable, PKSampler, WeightedSampler, read_metadata

ROUNDS = 5
UNCACHED_BATCHES = 40
"""Batches drawn from the uncached sampler, of 1863 in an epoch: the cost of a batch is the same throughout."""
FIELDS = {"image": Image(".jpg", size=(256, 128), fit="stretch")}
BATCH = data.PER_BATCH * data.INSTANCES


def measure() -> Iterator[Finding]:
    torch.set_num_threads(1)  # the tensors of the uncached sampler are too small for several threads
    with tempfile.TemporaryDirectory(prefix="penstock-train-") as scratch:
        folder = Path(scratch)
        shards = data.make(folder)
        images = data.unpack(shards, folder / "loose")
        ShardDataset(shards, FIELDS)  # makes the indexes, which is not timed
        with _cache(folder / "cache"):
            uncached_s, cached_s = _metadata_s(shards, folder / "cache")
            yield _at_most(f"metadata of {data.SAMPLES:,} samples from shards, s", uncached_s, 2.0, "s")
            yield _at_most(f"metadata of {data.SAMPLES:,} samples from the cache, ms", cached_s * 1e3, 50.0, "ms")
            table = read_metadata(ShardDataset(shards, FIELDS), ".json")
        sampler = PKSampler(table, data.PER_BATCH, data.INSTANCES, ensure="rgb", prefer_complete=True)
        yield from _compare_with_uncached(sampler, LooseFiles(images))
        yield _sampler_table(table, sampler)


def _metadata_s(shards: Path, cache: Path) -> tuple[float, float]:
    """Return the seconds of opening the dataset and reading its metadata, from the shards and from the cache.

    The indexes are stored beforehand.
    """

    def read() -> float:
        return seconds(lambda: read_metadata(ShardDataset(shards, FIELDS), ".json"))

    from_shards, from_cache = [], []
    for _ in range(ROUNDS):
        for file in cache.glob("metadata/*"):
            file.unlink()
        from_shards.append(read())
        from_cache.append(read())
    return median(from_shards), median(from_cache)


def _compare_with_uncached(sampler: PKSampler, files: LooseFiles) -> Iterator[Line]:
    uncached = UncachedModalAwarePKSampler(files, data.PER_BATCH, data.INSTANCES)

    def draw_ours() -> float:
        return seconds(lambda: [None for _ in range(4) for _ in sampler]) / (4 * len(sampler))

    def draw_uncached() -> float:
        return seconds(lambda: list(islice(uncached, UNCACHED_BATCHES))) / UNCACHED_BATCHES

    our_s, uncached_s = in_turns([draw_ours, draw_uncached], ROUNDS)
    yield _at_most(f"drawing a batch of {BATCH}, µs", median(our_s) * 1e6, 50.0, "µs")
    batches = len(uncached)
    samples_read = uncached.calls / (ROUNDS * UNCACHED_BATCHES)
    yield Line(
        f"sampler time of {batches:,} batches of {BATCH}",
        f"{median(our_s) * batches * 1e3:.1f} ms",
        f"uncached, {samples_read:.1f} samples read per batch: {median(uncached_s) * batches:.1f} s",
        median_ratio(uncached_s, our_s),
        1000.0,
        "at least",
    )


def _sampler_table(table: MetadataTable, sampler: PKSampler) -> Table:
    rng = np.random.default_rng(0)
    table = MetadataTable({**table.columns, **MetadataTable.of(length=rng.lognormal(4, 0.8, len(table))).columns})
    samplers = {
        'P×K, ensure="rgb", prefer_complete': sampler,
        "P×K": PKSampler(table, data.PER_BATCH, data.INSTANCES),
        "weighted": WeightedSampler(table, "length", BATCH),
        "class-balanced": BalancedSampler(table, BATCH, column="modality"),
        "length-bucketed": BucketSampler(table, BATCH),
    }
    rows = []
    for name, each in samplers.items():
        epoch_s = [seconds(lambda each=each: [None for _ in each]) for _ in range(ROUNDS)]
        first_s = [seconds(lambda each=each: next(iter(each))) for _ in range(ROUNDS)]
        per_batch_us = median(epoch_s) / len(each) * 1e6
        rows.append((name, str(each), f"{median(first_s) * 1e3:.1f} ms", f"{per_batch_us:.1f} µs"))
    note = (
        "An epoch is drawn when its first batch is requested. The time per batch is that of a whole epoch, "
        "divided by its batches."
    )
    return Table("Samplers", ("sampler", "summary", "first batch", "per batch"), rows, note)


def _at_most(what: str, figure: float, target: float, unit: str) -> Line:
    return Line(what, f"{figure:.3g} {unit}", f"to reach: {target:g} {unit}", figure, target, "at most")


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """Use this folder as the user's cache."""
    before = os.environ.get("PENSTOCK_CACHE")
    os.environ["PENSTOCK_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("PENSTOCK_CACHE")
        if before is not None:
            os.environ["PENSTOCK_CACHE"] = before
