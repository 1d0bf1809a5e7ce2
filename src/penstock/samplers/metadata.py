"""Reads what samplers need to know of every sample, once: from keys, from a small part of each, or from the samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from penstock.data.sources.map_dataset import is_dataset
from penstock.data.sources.shards import ShardSource
from penstock.errors import SettingError
from penstock.samplers import sample_metadata as samplerows
from penstock.samplers import shard_metadata as shardparts
from penstock.samplers import table_cache as fingerprints
from penstock.samplers.table import MetadataTable, as_table
from penstock.samplers.table_cache import TableKey, load, one_reader, store

log = logging.getLogger("penstock")

MetadataFunction = Callable[[Any], Mapping[str, Any]]
Columns = Sequence[str] | None
LOOKED_AT = 8
"""Samples of kept metadata that are read again, where no fingerprint can see a file that changed."""


def read_metadata(
    dataset: Any,
    source: str | MetadataFunction,
    *,
    of: Literal["sample", "key"] = "sample",
    columns: Columns = None,
    fingerprint: str | None = None,
    workers: int | None = None,
) -> MetadataTable:
    """What is known of every sample, in the dataset's order.

        table = read_metadata(ShardDataset(...), ".json")           # a JSON part of every sample, nothing else is read
        table = read_metadata(ShardDataset(...), parse, of="key")   # parse("0002_c1s1_000451"): from the index alone
        table = read_metadata(dataset, describe)                    # describe(sample), in processes, with a bar

    A function gives a mapping of names to words or numbers. Every sample must have all `columns`; without them, all
    that the first sample has. What was read is kept, bound to the shards' sizes and times, or to what a dataset holds
    and the function's own code. Files that a dataset opens cannot be seen from there, so a few samples are read again
    and compared, unless a `fingerprint` says which version of the data this is.
    """
    if not is_dataset(dataset):
        raise SettingError(f"metadata needs a map-style dataset, and {type(dataset).__name__} is none")
    if not len(dataset):
        raise SettingError("the dataset is empty: there is no metadata to read")
    if of not in ("sample", "key"):
        raise SettingError(f"metadata of {of!r} is not known", advice="Use sample or key")
    if not isinstance(source, str) and of == "sample":
        table = _of_samples(dataset, source, columns, fingerprint, workers)
    else:
        if fingerprint is not None or workers is not None:
            raise SettingError("fingerprint and workers are for functions of samples; shards need neither")
        table = _of_shards(_feed(dataset), source, columns)
    log.info("metadata of %s", table)
    return table


def _feed(dataset: Any) -> ShardSource:
    feed = shardparts.feed_of(dataset)
    if feed is None:
        raise SettingError(
            f"{type(dataset).__name__} has neither keys nor parts",
            advice="Give a penstock.datasets.ShardDataset, or a function of a sample",
        )
    return feed


def _of_shards(feed: ShardSource, source: str | MetadataFunction, columns: Columns) -> MetadataTable:
    where = partial(shardparts.place, feed)
    if not isinstance(source, str):
        return as_table(shardparts.key_rows(feed, source), columns, where)
    key = _key(fingerprints.of_shards(feed), source, columns)
    return _kept(key, len(feed.sample_index), lambda: as_table(shardparts.part_rows(feed, source), columns, where))


def _of_samples(
    dataset: Any, function: MetadataFunction, columns: Columns, fingerprint: str | None, workers: int | None
) -> MetadataTable:
    where = partial(samplerows.place, dataset)

    def read() -> MetadataTable:
        return as_table(samplerows.sample_rows(dataset, function, workers), columns, where)

    def is_true(table: MetadataTable) -> bool:
        some = np.unique(np.random.default_rng().integers(len(dataset), size=LOOKED_AT)).tolist()
        now = as_table(samplerows.sample_rows(dataset, function, 0, some), list(table.columns), where)
        return [now.row(place) for place in range(len(some))] == [table.row(sample) for sample in some]

    name = getattr(function, "__qualname__", type(function).__name__)
    if fingerprint is not None:
        return _kept(_key(f"{type(dataset).__qualname__} {fingerprint}", name, columns), len(dataset), read)
    found = fingerprints.of_dataset(dataset, function)
    if found is None:
        log.warning("metadata is not kept: the dataset or the function cannot be pickled; give a fingerprint")
        return read()
    return _kept(_key(found, name, columns), len(dataset), read, is_true)


def _key(fingerprint: str, source: str, columns: Columns) -> TableKey:
    return TableKey(fingerprint, source, None if columns is None else tuple(columns))


def _kept(
    key: TableKey,
    samples: int,
    read: Callable[[], MetadataTable],
    is_true: Callable[[MetadataTable], bool] = lambda _table: True,
) -> MetadataTable:
    with one_reader(key):
        found = load(key, samples)
        if found is not None and is_true(found):
            return found
        if found is not None:
            log.warning("samples have changed since their metadata was kept; reading all of it again")
        table = read()
        store(key, table)
        return table
