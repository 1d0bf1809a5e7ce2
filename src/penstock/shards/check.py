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
from penstock.errors import IndexFileError, IndexVersionError, PenstockError, WorkerCrash
from penstock.shards.codecs.by_suffix import verify_part
from penstock.shards.index import IndexBinding, ShardIndex, crc32_matches, load_index
from penstock.shards.open_shard import RemoteShard, open_shard
from penstock.shards.scan import SCAN_THREADS, may_describe, save_or_warn, scan_shard
from penstock.shards.task_pool import TaskOutcome, run_tasks
from penstock.shards.validate import check_samples
from penstock.storage.object_store.url import is_remote

TASK_BYTES = 64 << 20
"""Bytes of the samples of one task: enough to hide the cost of a task, few enough to occupy all cores."""

_COPIED = (
    "the shard was copied or changed since it was indexed; its index is kept if all CRC32s in it match (if they do not "
    "because it was changed on purpose, run 'penstock shards index --rebuild')"
)

_ScanResult = tuple["ShardStructure", "Iterable[CheckTask]", IndexBinding | None]
"""The structure and the tasks of a shard, and its version if the stored index is to be renewed for it."""


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
    notes: tuple[str, ...] = ()
    """Sentences on what is no flaw, such as an outdated index."""


def check_shards(
    shards: Iterable[str], *, decode: bool, required: Sequence[str] | None = None, workers: int | None = None
) -> Iterator[ShardStructure | tuple[CheckTask, list[ShardFlaw]]]:
    """Yield the structure of each shard, then its tasks, if its bytes are checked, as they are finished."""
    structures: deque[ShardStructure] = deque()
    halved: list[CheckTask] = []
    renewed: dict[str, IndexBinding] = {}

    def all_tasks() -> Iterator[CheckTask]:
        for structure, tasks, version in _map_ahead(partial(_scan, decode=decode, required=required), shards):
            structures.append(structure)
            if version is not None:
                renewed[structure.shard] = version
            yield from tasks

    pending: Iterable[CheckTask] = all_tasks()
    while pending:
        for outcome in run_tasks(run_check_task, pending, workers):
            yield from _drain(structures)
            if isinstance(outcome.error, WorkerCrash) and len(outcome.task.samples) > 1:
                halved += _split_in_half(outcome.task)
            else:
                flaws = _outcome_flaws(outcome)
                if flaws:
                    renewed.pop(outcome.task.shard, None)
                yield outcome.task, flaws
        pending, halved = halved, []
    yield from _drain(structures)
    for shard, binding in renewed.items():
        _renew_index(shard, binding)


def _renew_index(shard: str, binding: IndexBinding) -> None:
    """Bind the stored index to the version of the shard whose bytes have been compared with its CRC32s."""
    stored = load_index(shard)
    if stored is not None:
        save_or_warn(replace(stored, binding=binding), shard)


def _scan(shard: str, decode: bool, required: Sequence[str] | None) -> _ScanResult:
    """Scan one shard's headers and pair its parts; a broken shard is a result, not an exception."""
    try:
        scanned = scan_shard(shard)
        stored = _compare_stored(shard, scanned)
        index = replace(scanned, crcs=stored.crcs).paired_by(required or ())
        health = check_samples(index, required)
    except PenstockError as error:
        return ShardStructure(shard, 0, 0, 0, False, (_flaw_from_error(shard, error),)), (), None
    flaws = [
        ShardFlaw(shard, problem.member, problem.offset, problem.kind, problem.reason) for problem in health.problems
    ]
    if stored.flaw:
        flaws.append(ShardFlaw(shard, None, None, "index", stored.flaw))
    notes = [] if stored.note is None else [stored.note]
    if not len(index):
        notes.append("the shard has no samples")
    tasks = _split_into_tasks(shard, index, decode) if decode or index.crcs is not None else ()
    structure = ShardStructure(
        shard,
        samples=len(index),
        parts=index.part_count,
        size_bytes=int(index.lengths.sum()),
        with_crc=index.crcs is not None,
        flaws=tuple(flaws),
        notes=tuple(notes),
    )
    return structure, tasks, scanned.binding if stored.is_outdated else None


def _map_ahead(function: Callable[[str], _ScanResult], shards: Iterable[str]) -> Iterator[_ScanResult]:
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
                if part.unreadable:  # is a flaw already
                    continue
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


@dataclass(frozen=True, slots=True)
class _StoredIndex:
    """The result of comparing the stored index of a shard with its headers."""

    crcs: NDArray[np.uint32] | None = None
    """The CRC32s, if the index describes the same parts."""
    flaw: str | None = None
    note: str | None = None
    is_outdated: bool = False
    """Whether it was made for another version of the shard, but describes the same parts."""


def _compare_stored(shard: str, scanned: ShardIndex) -> _StoredIndex:
    """Compare the stored index with the headers; one of an earlier version is no flaw, and is rebuilt."""
    try:
        stored = load_index(shard)
    except IndexVersionError as error:
        save_or_warn(scanned, shard)
        return _StoredIndex(note=f"{error.reason}: it was rebuilt, without CRC32s")
    except IndexFileError as error:
        return _StoredIndex(flaw=error.reason)
    if stored is None:
        return _StoredIndex()
    columns = ("starts", "suffix_ids", "offsets", "lengths")
    same = all(np.array_equal(getattr(stored, column), getattr(scanned, column)) for column in columns)
    same = same and stored.keys == scanned.keys and stored.suffixes == scanned.suffixes
    uploaded = is_remote(shard) and may_describe(stored, scanned.binding)
    if stored.binding == scanned.binding or uploaded:
        return (
            _StoredIndex(stored.crcs)
            if same
            else _StoredIndex(flaw="the stored index disagrees with the shard's headers")
        )
    if stored.crcs is None or not same:
        save_or_warn(scanned, shard)
        return _StoredIndex(note="the shard has changed since it was indexed: its index was rebuilt")
    return _StoredIndex(stored.crcs, note=_COPIED, is_outdated=True)


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
