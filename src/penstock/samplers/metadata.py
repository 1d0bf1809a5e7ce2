"""Reads the metadata of every sample once: from keys, from a small part of each sample, or from the samples themselves.

Shards need no image to be decoded: their keys are in the index, and of their JSON parts only these and small gaps
between them are read. The samples of any other map-style dataset are made once, by as many processes as there are
cores.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import Progress

from penstock.core.cores import usable_cores
from penstock.core.slab_layout import SlabLayout
from penstock.data.decode.dataset_program import DatasetSamples
from penstock.data.decode.decoder import Decoder
from penstock.data.decode.rng import restore_global_rngs
from penstock.data.fields import Json
from penstock.data.read.block_source import ShardBlockSource
from penstock.data.read.sample_index import WantedPart, make_sample_index
from penstock.data.sources.map_dataset import is_dataset
from penstock.data.sources.shards import ShardSource
from penstock.errors import PenstockError, SampleError, SettingError
from penstock.samplers.table import MetadataTable, TableKey, as_table, load_table, store_table, table_lock
from penstock.shards.scan import SCAN_THREADS

log = logging.getLogger("penstock")

MetadataFunction = Callable[[Any], Mapping[str, Any]]
"""A function from a sample, or from a key, to names and values."""
Columns = Sequence[str] | None
CHECKED_SAMPLES = 8
"""Samples that are read again before cached metadata is used, where no fingerprint can show that a file has changed."""
BATCH = 64
"""Samples that a process makes at a time."""
_FIELD = "row"


def read_metadata(
    dataset: Any,
    source: str | MetadataFunction,
    *,
    of: Literal["sample", "key"] = "sample",
    columns: Columns = None,
    fingerprint: str | None = None,
    workers: int | None = None,
) -> MetadataTable:
    """Return a table of the metadata of every sample, in the dataset's order.

        table = read_metadata(ShardDataset(...), ".json")           # a JSON part of every sample; only these are read
        table = read_metadata(ShardDataset(...), parse, of="key")   # parse("0002_c1s1_000451"); only the index is read
        table = read_metadata(dataset, describe)                    # describe(sample), in processes, with a progress
        bar

    A function returns a mapping of names to strings or numbers. Every sample must have all `columns`; without them, all
    that the first sample has. The table is cached. The cache is bound to the shards' sizes and times, or to the content
    of the dataset object and the function's own code. Files that a dataset opens cannot be checked, so a few samples
    are read again and compared, unless a `fingerprint` names the version of the data.
    """
    if not is_dataset(dataset):
        raise SettingError(f"metadata needs a map-style dataset, and {type(dataset).__name__} is not one")
    if not len(dataset):
        raise SettingError("the dataset is empty: there is no metadata to read")
    if of not in ("sample", "key"):
        raise SettingError(f"metadata of {of!r} is not known", advice="Use sample or key")
    if not isinstance(source, str) and of == "sample":
        table = _from_samples(dataset, source, columns, fingerprint, workers)
    else:
        if fingerprint is not None or workers is not None:
            raise SettingError("fingerprint and workers are for functions of samples; shards need neither")
        table = _from_shards(_shard_source(dataset), source, columns)
    log.info("metadata of %s", table)
    return table


def _cached(
    key: TableKey,
    samples: int,
    read: Callable[[], MetadataTable],
    is_current: Callable[[MetadataTable], bool] = lambda _table: True,
) -> MetadataTable:
    """Return the cached table if there is a current one, else read it and cache it."""
    with table_lock(key):
        cached = load_table(key, samples)
        if cached is not None and is_current(cached):
            return cached
        if cached is not None:
            log.warning("samples have changed since their metadata was cached; reading all of it again")
        table = read()
        store_table(key, table)
        return table


def _key(fingerprint: str, source: str, columns: Columns) -> TableKey:
    return TableKey(fingerprint, source, None if columns is None else tuple(columns))


# -- shards ------------------------------------------------------------------------------------------------------------


def _from_shards(source: ShardSource, metadata: str | MetadataFunction, columns: Columns) -> MetadataTable:
    locate = partial(_locate_in_shards, source)
    if not isinstance(metadata, str):
        return as_table(_key_rows(source, metadata), columns, locate)
    key = _key(shards_fingerprint(source), metadata, columns)
    return _cached(key, len(source.sample_index), lambda: as_table(_part_rows(source, metadata), columns, locate))


def _shard_source(dataset: Any) -> ShardSource:
    """Return what a ShardDataset reads from; any other dataset is refused."""
    source = getattr(dataset, "source", None)
    if not isinstance(source, ShardSource):
        raise SettingError(
            f"{type(dataset).__name__} has neither keys nor parts",
            advice="Give a penstock.datasets.ShardDataset, or a function of a sample",
        )
    return source


def _key_rows(source: ShardSource, function: Callable[[str], Mapping[str, Any]]) -> list[Any]:
    """Return the result of the function for every key."""
    rows = []
    for sample, key in enumerate(source.sample_index.keys(np.arange(len(source.sample_index)))):
        try:
            rows.append(function(key))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise SampleError(reason, stage="metadata", **_locate_in_shards(source, sample)) from error
    return rows


def _part_rows(source: ShardSource, suffix: str) -> list[Any]:
    """Return the JSON part of every sample; only these parts and small gaps between them are read."""
    index = source.sample_index
    parts = make_sample_index(index.paths, index.indexes, index.numbers, [WantedPart((suffix,))])
    blocks = ShardBlockSource(parts, source.order_settings.block_bytes)
    decoder = Decoder({_FIELD: Json(suffix)}, SlabLayout({}, 1), seed=0)
    try:
        with ThreadPoolExecutor(SCAN_THREADS) as pool:
            rows = pool.map(partial(_block_rows, blocks, decoder), range(len(blocks.blocks)))
            return [row for block in rows for row in block]
    finally:
        blocks.close()


def _block_rows(blocks: ShardBlockSource, decoder: Decoder, block: int) -> list[Any]:
    memory = memoryview(bytearray(blocks.block_bytes(block)))
    blocks.read_block(block, memory)
    first, end = blocks.blocks.first_samples[block : block + 2].tolist()
    samples = np.arange(first, end)
    zeros = np.zeros_like(samples)
    rows = []
    for sample, row in enumerate(blocks.task_rows(samples, zeros, zeros).tolist(), first):
        try:
            rows.append(decoder.sample(row, 0, memory)[_FIELD])
        except PenstockError as error:
            shard, error.member, offset = blocks.sample_index.location(sample, error.member)
            raise error.at(shard=shard, offset=offset) from None
    return rows


def _locate_in_shards(source: ShardSource, sample: int) -> dict[str, Any]:
    shard, member, offset = source.location(sample)
    return {"shard": shard, "member": member, "offset": offset}


def shards_fingerprint(source: ShardSource) -> str:
    """Return a hash of the samples and of each shard's size and time: a part may change without changing its length."""
    digest = hashlib.sha256(str(source.identity()["fingerprint"]).encode())
    for index in source.sample_index.indexes:
        digest.update(f"{index.binding.size} {index.binding.mtime_ns} {index.binding.etag}\n".encode())
    return digest.hexdigest()[:32]


# -- samples of any dataset --------------------------------------------------------------------------------------------


def _from_samples(
    dataset: Any, function: MetadataFunction, columns: Columns, fingerprint: str | None, workers: int | None
) -> MetadataTable:
    locate = partial(_locate_in_dataset, dataset)

    def read() -> MetadataTable:
        return as_table(_sample_rows(dataset, function, workers), columns, locate)

    def is_current(table: MetadataTable) -> bool:
        some = np.unique(np.random.default_rng().integers(len(dataset), size=CHECKED_SAMPLES)).tolist()
        now = as_table(_sample_rows(dataset, function, 0, some), list(table.columns), locate)
        return [now.row(index) for index in range(len(some))] == [table.row(sample) for sample in some]

    name = getattr(function, "__qualname__", type(function).__name__)
    if fingerprint is not None:
        return _cached(_key(f"{type(dataset).__qualname__} {fingerprint}", name, columns), len(dataset), read)
    found = dataset_fingerprint(dataset, function)
    if found is None:
        log.warning("metadata is not cached: the dataset or the function cannot be pickled; give a fingerprint")
        return read()
    return _cached(_key(found, name, columns), len(dataset), read, is_current)


@dataclass(frozen=True)
class _MetadataRows:
    """A dataset of metadata over the user's dataset, so that workers send little, however large the samples are."""

    samples: DatasetSamples
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows; in place of each that failed, its error."""
        return list(self.samples.fetch([self.numbers[index] for index in indices], epoch=0))


def _sample_rows(
    dataset: Any, function: MetadataFunction, workers: int | None = None, numbers: Sequence[int] | None = None
) -> list[Any]:
    """Return the result of the function for every sample, or for those with these numbers, and show a progress bar.

    Samples are made by a torch DataLoader; with 0 workers, in this process.
    """
    from torch.utils.data import DataLoader

    numbers = range(len(dataset)) if numbers is None else numbers
    cores = usable_cores()
    count = workers if workers is not None else cores if cores > 1 and len(numbers) > BATCH else 0
    dataset_rows = _MetadataRows(DatasetSamples(dataset, 0, partial(_apply, function), in_processes=count > 0), numbers)
    loader: DataLoader[Any] = DataLoader(
        dataset_rows,  # type: ignore[arg-type]
        batch_size=BATCH,
        num_workers=count,
        collate_fn=list,
    )
    rows: list[Any] = []
    # the loader draws from the global random generators of the training, and so may the dataset
    with restore_global_rngs(), Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("metadata", total=len(numbers))
        for batch in loader:
            rows += [_checked(row, dataset, numbers[len(rows) + index]) for index, row in enumerate(batch)]
            bar.update(task, completed=len(rows))
    return rows


def _apply(function: MetadataFunction, sample: Any, _rng: np.random.Generator) -> Mapping[str, Any]:
    return function(sample)


def _checked(row: Any, dataset: Any, sample: int) -> Any:
    if isinstance(row, PenstockError):
        raise row.at(**_locate_in_dataset(dataset, sample))
    return row


def _locate_in_dataset(dataset: Any, sample: int) -> dict[str, Any]:
    return {"shard": type(dataset).__name__, "member": str(sample)}


def dataset_fingerprint(dataset: Any, function: Callable[[Any], Any]) -> str | None:
    """Return a hash of the dataset object and of the function's own code; None where they cannot be pickled.

    The pickle is only hashed and never read. Files that the dataset opens are not included.
    """
    try:
        content = pickle.dumps((dataset, *_bound_values(function)), protocol=5)
        code = inspect.getsource(_code_of(function))
    except Exception:  # any object of a dataset may refuse with an error of its own
        return None
    return hashlib.sha256(content + code.encode()).hexdigest()[:32]


def _code_of(function: Any) -> Any:
    if isinstance(function, partial):
        return _code_of(function.func)
    return function if inspect.isroutine(function) else type(function)


def _bound_values(function: Any) -> tuple[Any, ...]:
    """Return the values that a function carries besides its code: arguments, defaults, closure."""
    if isinstance(function, partial):
        return (function.args, function.keywords, *_bound_values(function.func))
    if not inspect.isfunction(function):
        return (function,)
    return (function.__defaults__, function.__kwdefaults__, [cell.cell_contents for cell in function.__closure__ or ()])
