"""Metadata and batches, against the uncached sampler of field report 003."""

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
BASELINE_BATCHES = 40
"""Of the 1863 of an epoch: what a batch costs does not change on the way."""
FIELDS = {"image": Image(".jpg", size=(256, 128), fit="stretch")}
BATCH = data.PER_BATCH * data.INSTANCES


def measure() -> Iterator[Finding]:
    torch.set_num_threads(1)  # the uncached sampler's tensors are small, and threads would only wait for each other
    with tempfile.TemporaryDirectory(prefix="penstock-train-") as scratch:
        folder = Path(scratch)
        shards = data.make(folder)
        pictures = data.unpack(shards, folder / "loose")
        ShardDataset(shards, FIELDS)  # indexes are made once
        with _cache(folder / "cache"):
            fresh_s, kept_s = _metadata_s(shards, folder / "cache")
            yield _at_most(f"metadata of {data.SAMPLES:,} samples from shards, s", fresh_s, 2.0, "s")
            yield _at_most(f"metadata of {data.SAMPLES:,} samples from the cache, ms", kept_s * 1e3, 50.0, "ms")
            table = read_metadata(ShardDataset(shards, FIELDS), ".json")
        sampler = PKSampler(table, data.PER_BATCH, data.INSTANCES, ensure="rgb", prefer_complete=True)
        yield from _against_uncached(sampler, LooseFiles(pictures))
        yield _draws(table, sampler)


def _metadata_s(shards: Path, cache: Path) -> tuple[float, float]:
    """With the dataset opened, its indexes stored: read from the shards, and found in the cache."""

    def read() -> float:
        return seconds(lambda: read_metadata(ShardDataset(shards, FIELDS), ".json"))

    fresh, kept = [], []
    for _ in range(ROUNDS):
        for file in cache.glob("metadata/*"):
            file.unlink()
        fresh.append(read())
        kept.append(read())
    return median(fresh), median(kept)


def _against_uncached(sampler: PKSampler, files: LooseFiles) -> Iterator[Line]:
    uncached = UncachedModalAwarePKSampler(files, data.PER_BATCH, data.INSTANCES)

    def ours() -> float:
        return seconds(lambda: [None for _ in range(4) for _ in sampler]) / (4 * len(sampler))

    def theirs() -> float:
        return seconds(lambda: list(islice(uncached, BASELINE_BATCHES))) / BASELINE_BATCHES

    mine, others = in_turns([ours, theirs], ROUNDS)
    yield _at_most(f"a batch of {BATCH} drawn, µs", median(mine) * 1e6, 50.0, "µs")
    batches = len(uncached)
    calls = uncached.calls / (ROUNDS * BASELINE_BATCHES)
    yield Line(
        f"sampler time of {batches:,} batches of {BATCH}",
        f"{median(mine) * batches * 1e3:.1f} ms",
        f"uncached, {calls:.1f} samples read a batch: {median(others) * batches:.1f} s",
        median_ratio(others, mine),
        1000.0,
        "at least",
    )


def _draws(table: MetadataTable, sampler: PKSampler) -> Table:
    rng = np.random.default_rng(0)
    table = MetadataTable({**table.columns, **MetadataTable.of(length=rng.lognormal(4, 0.8, len(table))).columns})
    bucketed = BucketSampler(table, BATCH)
    samplers = {
        "P×K, ensured and complete first": sampler,
        "P×K": PKSampler(table, data.PER_BATCH, data.INSTANCES),
        "weighted": WeightedSampler(table, "length", BATCH),
        "class-balanced": BalancedSampler(table, BATCH, column="modality"),
        "length-bucketed": bucketed,
    }
    rows = []
    for name, each in samplers.items():
        taken = [seconds(lambda each=each: [None for _ in each]) for _ in range(ROUNDS)]
        first = [seconds(lambda each=each: next(iter(each))) for _ in range(ROUNDS)]
        per_batch = median(taken) / len(each) * 1e6
        rows.append((name, str(each), f"{median(first) * 1e3:.1f} ms", f"{per_batch:.1f} µs"))
    note = "An epoch is drawn when its first batch is asked for; per batch is the whole epoch over its batches."
    return Table("Samplers", ("sampler", "what it found", "first batch", "per batch"), rows, note)


def _at_most(what: str, figure: float, target: float, unit: str) -> Line:
    return Line(what, f"{figure:.3g} {unit}", f"to reach: {target:g} {unit}", figure, target, "at most")


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("PENSTOCK_CACHE")
    os.environ["PENSTOCK_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("PENSTOCK_CACHE")
        if before is not None:
            os.environ["PENSTOCK_CACHE"] = before
