"""Verify shards: structure and pairs from a new scan, CRC32s where the index has them, and every part by decoding.

Bytes are checked in tasks of some tens of MB, on all cores. A decoder that kills its process costs nothing but time:
its task is halved until the sample that causes it is found, and that sample is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Part, Sample
from penstock.errors import IndexFileError, PenstockError, WorkerCrash
from penstock.shards.codecs.by_suffix import verify_part
from penstock.shards.index import IndexBinding, ShardIndex, crc32_matches, load_index
from penstock.shards.open_shard import RemoteShard, open_shard
from penstock.shards.scan import SCAN_THREADS, may_describe, scan_shard
from penstock.shards.task_pool import TaskOutcome, run_tasks
from penstock.shards.validate import check_samples
from penstock.storage.object_store.url import is_remote

TASK_BYTES = 64 << 20
"""Bytes of the samples of one task: enough to hide the cost of a task, few enough to occupy all cores."""

_StructureAndTasks = tuple["ShardStructure", "Iterable[CheckTask]"]


@dataclass(frozen=True, slots=True)
class ShardFlaw:
    """One line of the quarantine list."""

    shard: str
    member: str | None
    offset: int | None
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Some samples of one shard whose bytes are to be checked."""

    shard: str
    samples: tuple[Sample, ...]
    decode: bool
    binding: IndexBinding
    """The version of the shard whose headers were scanned."""


@dataclass(frozen=True, slots=True)
class ShardStructure:
    """The result of scanning the headers of one shard."""

    shard: str
    samples: int
    parts: int
    size_bytes: int
    with_crc: bool
    flaws: tuple[ShardFlaw, ...]


def check_shards(
    shards: Iterable[str], *, decode: bool, required: Sequence[str] | None = None, workers: int | None = None
) -> Iterator[ShardStructure | tuple[CheckTask, list[ShardFlaw]]]:
    """Yield the structure of each shard, then its tasks, if its bytes are checked, as they are finished."""
    structures: deque[ShardStructure] = deque()
    halved: list[CheckTask] = []

    def all_tasks() -> Iterator[CheckTask]:
        for structure, tasks in _map_ahead(partial(_scan_structure, decode=decode, required=required), shards):
            structures.append(structure)
            yield from tasks

    pending: Iterable[CheckTask] = all_tasks()
    while pending:
        for outcome in run_tasks(run_check_task, pending, workers):
            yield from _drain(structures)
            if isinstance(outcome.error, WorkerCrash) and len(outcome.task.samples) > 1:
                halved += _split_in_half(outcome.task)
            else:
                yield outcome.task, _outcome_flaws(outcome)
        pending, halved = halved, []
    yield from _drain(structures)


def _scan_structure(
    shard: str, decode: bool, required: Sequence[str] | None
) -> tuple[ShardStructure, Iterable[CheckTask]]:
    """Scan one shard's headers and pair its parts; a broken shard is a result, not an exception."""
    try:
        scanned = scan_shard(shard)
        crcs, complaint = _stored_crcs(shard, scanned)
        index = replace(scanned, crcs=crcs).paired_by(required or ())
        health = check_samples(index, required)
    except PenstockError as error:
        return ShardStructure(shard, 0, 0, 0, False, (_flaw_from_error(shard, error),)), ()
    flaws = [
        ShardFlaw(shard, problem.member, problem.offset, problem.kind, problem.reason) for problem in health.problems
    ]
    if complaint:
        flaws.append(ShardFlaw(shard, None, None, "index", complaint))
    if not len(index):
        flaws.append(ShardFlaw(shard, None, None, "empty", "has no samples"))
    tasks = _split_into_tasks(shard, index, decode) if decode or crcs is not None else ()
    size = int(index.lengths.sum())
    return ShardStructure(shard, len(index), index.part_count, size, crcs is not None, tuple(flaws)), tasks


def _map_ahead(function: Callable[[str], _StructureAndTasks], shards: Iterable[str]) -> Iterator[_StructureAndTasks]:
    """Yield results in order, with a few shards scanned ahead in threads, since their storage may be slow."""
    waiting = iter(shards)
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        started = deque(pool.submit(function, shard) for shard in islice(waiting, 2 * SCAN_THREADS))
        while started:
            yield started.popleft().result()
            started.extend(pool.submit(function, shard) for shard in islice(waiting, 1))


def _drain(structures: deque[ShardStructure]) -> Iterator[ShardStructure]:
    while structures:
        yield structures.popleft()


def _outcome_flaws(outcome: TaskOutcome[CheckTask, list[ShardFlaw]]) -> list[ShardFlaw]:
    if isinstance(outcome.error, WorkerCrash):
        return [_crash_flaw(outcome.task, outcome.error)]
    if outcome.error is not None:
        return [_flaw_from_error(outcome.task.shard, outcome.error)]
    return outcome.result or []


def run_check_task(task: CheckTask) -> list[ShardFlaw]:
    """Read and check the bytes of a task; return the flaws found."""
    flaws: list[ShardFlaw] = []
    by_offset = sorted(
        ((part.offset, sample.key, part) for sample in task.samples for part in sample.parts),
        key=lambda entry: entry[0],
    )
    try:
        with open_shard(task.shard) as shard:
            task.binding.check(shard)
            for offset, key, part in by_offset:
                data = shard.read_at(offset, part.length)
                flaw = _check_part(task, key, part, data)
                if flaw is not None and isinstance(shard, RemoteShard):  # the transfer may have damaged it
                    flaw = _check_part(task, key, part, shard.reread(offset, part.length))
                if flaw is not None:
                    flaws.append(flaw)
    except PenstockError as error:
        flaws.append(_flaw_from_error(task.shard, error))
    return flaws


def _check_part(task: CheckTask, key: str, part: Part, data: bytes) -> ShardFlaw | None:
    name = key + part.suffix
    if not crc32_matches(data, part.crc32):
        return ShardFlaw(task.shard, name, part.offset, "crc", "CRC32 does not match the index")
    if task.decode:
        try:
            verify_part(part.suffix, data)
        except PenstockError as error:
            return _flaw_from_error(task.shard, error.at(member=name, offset=part.offset))
    return None


def _split_into_tasks(shard: str, index: ShardIndex, decode: bool) -> Iterator[CheckTask]:
    """Yield tasks of consecutive samples; a compressed shard is one task, since it can only be read as a whole."""
    samples = map(index.sample, range(len(index)))
    if index.compression is not None:
        yield CheckTask(shard, tuple(samples), decode, index.binding)
        return
    collected: list[Sample] = []
    size = 0
    for sample in samples:
        collected.append(sample)
        size += sum(part.length for part in sample.parts)
        if size >= TASK_BYTES:
            yield CheckTask(shard, tuple(collected), decode, index.binding)
            collected, size = [], 0
    if collected:
        yield CheckTask(shard, tuple(collected), decode, index.binding)


def _stored_crcs(shard: str, scanned: ShardIndex) -> tuple[NDArray[np.uint32] | None, str | None]:
    """Return the CRC32s of the stored index if it describes the same bytes, and else what is wrong with it."""
    try:
        stored = load_index(shard)
    except IndexFileError as error:
        return None, error.reason
    if stored is None:
        return None, None
    uploaded = is_remote(shard) and may_describe(stored, scanned.binding)  # the columns below decide
    if stored.binding != scanned.binding and not uploaded:
        return None, "the stored index is of an earlier version of the shard"
    columns = ("starts", "suffix_ids", "offsets", "lengths")
    same = all(np.array_equal(getattr(stored, column), getattr(scanned, column)) for column in columns)
    if not same or stored.keys != scanned.keys or stored.suffixes != scanned.suffixes:
        return None, "the stored index disagrees with the shard's headers"
    return stored.crcs, None


def _split_in_half(task: CheckTask) -> list[CheckTask]:
    middle = len(task.samples) // 2
    return [replace(task, samples=half) for half in (task.samples[:middle], task.samples[middle:])]


def _crash_flaw(task: CheckTask, crash: WorkerCrash) -> ShardFlaw:
    sample = task.samples[0]
    return ShardFlaw(task.shard, sample.key, sample.parts[0].offset, "crash", f"decoding it: {crash.reason}")


def _flaw_from_error(shard: str, error: Exception) -> ShardFlaw:
    if isinstance(error, PenstockError):
        return ShardFlaw(shard, error.member, error.offset, type(error).__name__, error.reason)
    return ShardFlaw(shard, None, None, type(error).__name__, str(error))
