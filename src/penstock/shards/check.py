"""Verifies shards: structure and pairs from a fresh walk, CRCs where the index has them, and every part by decoding.

Bytes are checked in pieces of some tens of MB on all cores. A decoder that selections its process down costs nothing but
time: the piece is halved until the one sample that does it is found, and that sample is named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import deflate
import numpy as np
from numpy.typing import NDArray

from penstock.core.sample import Part, Sample
from penstock.errors import IndexFileError, PenstockError, WorkerCrash
from penstock.shards.codecs.by_suffix import verify_part
from penstock.shards.index import IndexBinding, ShardIndex, load_index
from penstock.shards.open_shard import RemoteShard, open_shard
from penstock.shards.scan import SCAN_THREADS, may_describe, scan_shard
from penstock.shards.task_pool import TaskOutcome, run_tasks
from penstock.shards.validate import check_samples
from penstock.storage.object_store.url import is_remote

TASK_BYTES = 64 << 20

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
    """Some samples of one shard whose bytes are to be looked at."""

    shard: str
    samples: tuple[Sample, ...]
    decode: bool
    binding: IndexBinding
    """What the shard looked like when its headers were walked."""


@dataclass(frozen=True, slots=True)
class ShardStructure:
    """What the headers of one shard say."""

    shard: str
    samples: int
    parts: int
    size_bytes: int
    with_crc: bool
    flaws: tuple[ShardFlaw, ...]


def check_shards(
    shards: Iterable[str], *, decode: bool, required: Sequence[str] | None = None, workers: int | None = None
) -> Iterator[ShardStructure | tuple[CheckTask, list[ShardFlaw]]]:
    """First each shard's structure, then, as they are done, the pieces of it that had to be read."""
    structures: deque[ShardStructure] = deque()
    again: list[CheckTask] = []

    def to_do() -> Iterator[CheckTask]:
        for structure, pieces in _map_ahead(partial(_scan_structure, decode=decode, required=required), shards):
            structures.append(structure)
            yield from pieces

    todo: Iterable[CheckTask] = to_do()
    while todo:
        for done in run_tasks(run_check_task, todo, workers):
            yield from _drain(structures)
            if isinstance(done.error, WorkerCrash) and len(done.task.samples) > 1:
                again += _split_in_half(done.task)
            else:
                yield done.task, _outcome_flaws(done)
        todo, again = again, []
    yield from _drain(structures)


def _scan_structure(
    shard: str, decode: bool, required: Sequence[str] | None
) -> tuple[ShardStructure, Iterable[CheckTask]]:
    """Walk one shard's headers and pair its parts; a broken shard is a result, not an exception."""
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
    pieces = _split_into_tasks(shard, index, decode) if decode or crcs is not None else ()
    size = int(index.lengths.sum())
    return ShardStructure(shard, len(index), index.part_count, size, crcs is not None, tuple(flaws)), pieces


def _map_ahead(work: Callable[[str], _StructureAndTasks], shards: Iterable[str]) -> Iterator[_StructureAndTasks]:
    """Results in order, a few shards walked ahead in threads: headers come from storage that may be slow."""
    waiting = iter(shards)
    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        started = deque(pool.submit(work, shard) for shard in islice(waiting, 2 * SCAN_THREADS))
        while started:
            yield started.popleft().result()
            started.extend(pool.submit(work, shard) for shard in islice(waiting, 1))


def _drain(structures: deque[ShardStructure]) -> Iterator[ShardStructure]:
    while structures:
        yield structures.popleft()


def _outcome_flaws(done: TaskOutcome[CheckTask, list[ShardFlaw]]) -> list[ShardFlaw]:
    if isinstance(done.error, WorkerCrash):
        return [_crash_flaw(done.task, done.error)]
    if done.error is not None:
        return [_flaw_from_error(done.task.shard, done.error)]
    return done.result or []


def run_check_task(piece: CheckTask) -> list[ShardFlaw]:
    """The task itself: free of any executor."""
    flaws: list[ShardFlaw] = []
    places = sorted(
        ((part.offset, sample.key, part) for sample in piece.samples for part in sample.parts),
        key=lambda place: place[0],
    )
    try:
        with open_shard(piece.shard) as shard:
            piece.binding.check(shard)
            for offset, key, part in places:
                data = shard.read_at(offset, part.length)
                flaw = _check_part(piece, key, part, data)
                if flaw is not None and isinstance(shard, RemoteShard):  # it may have come damaged
                    flaw = _check_part(piece, key, part, shard.reread(offset, part.length))
                if flaw is not None:
                    flaws.append(flaw)
    except PenstockError as error:
        flaws.append(_flaw_from_error(piece.shard, error))
    return flaws


def _check_part(piece: CheckTask, key: str, part: Part, data: bytes) -> ShardFlaw | None:
    name = key + part.suffix
    if part.crc32 is not None and deflate.crc32(data) != part.crc32:
        return ShardFlaw(piece.shard, name, part.offset, "crc", "CRC32 does not match the index")
    if piece.decode:
        try:
            verify_part(part.suffix, data)
        except PenstockError as error:
            return _flaw_from_error(piece.shard, error.at(member=name, offset=part.offset))
    return None


def _split_into_tasks(shard: str, index: ShardIndex, decode: bool) -> Iterator[CheckTask]:
    """Runs of samples; a compressed shard can only be read as a whole."""
    samples = map(index.sample, range(len(index)))
    if index.compression is not None:
        yield CheckTask(shard, tuple(samples), decode, index.binding)
        return
    held: list[Sample] = []
    size = 0
    for sample in samples:
        held.append(sample)
        size += sum(part.length for part in sample.parts)
        if size >= TASK_BYTES:
            yield CheckTask(shard, tuple(held), decode, index.binding)
            held, size = [], 0
    if held:
        yield CheckTask(shard, tuple(held), decode, index.binding)


def _stored_crcs(shard: str, fresh: ShardIndex) -> tuple[NDArray[np.uint32] | None, str | None]:
    """The CRCs of the stored index, if it speaks of the same bytes; else what is wrong with it."""
    try:
        stored = load_index(shard)
    except IndexFileError as error:
        return None, error.reason
    if stored is None:
        return None, None
    uploaded = is_remote(shard) and may_describe(stored, fresh.binding)  # its columns will tell
    if stored.binding != fresh.binding and not uploaded:
        return None, "the stored index is of an earlier state of the shard"
    columns = ("starts", "suffix_ids", "offsets", "lengths")
    same = all(np.array_equal(getattr(stored, column), getattr(fresh, column)) for column in columns)
    if not same or stored.keys != fresh.keys or stored.suffixes != fresh.suffixes:
        return None, "the stored index disagrees with the shard's headers"
    return stored.crcs, None


def _split_in_half(piece: CheckTask) -> list[CheckTask]:
    middle = len(piece.samples) // 2
    return [replace(piece, samples=half) for half in (piece.samples[:middle], piece.samples[middle:])]


def _crash_flaw(piece: CheckTask, crash: WorkerCrash) -> ShardFlaw:
    sample = piece.samples[0]
    return ShardFlaw(piece.shard, sample.key, sample.parts[0].offset, "crash", f"decoding it: {crash.reason}")


def _flaw_from_error(shard: str, error: Exception) -> ShardFlaw:
    if isinstance(error, PenstockError):
        return ShardFlaw(shard, error.member, error.offset, type(error).__name__, error.reason)
    return ShardFlaw(shard, None, None, type(error).__name__, str(error))
