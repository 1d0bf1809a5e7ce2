"""Ranks of one machine: one tunes, on as many cores as it will have in training, and all take what it found.

A rank's n-th question about a dataset has the answer of the first rank that asked it for the n-th time, however far
the others are behind: also where everything is to be measured anew, and also if the tuning was cut short.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

import msgspec
import psutil

from penstock.core import user_cache as keeping
from penstock.core.cores import rank_cores, worker_cores
from penstock.core.process_lock import file_lock
from penstock.core.ranks import local_rank, rank_from_torch
from penstock.core.user_cache import cache_dir
from penstock.errors import StorageError
from penstock.tuner import saved_results as memo
from penstock.tuner.result import TuningFindings
from penstock.tuner.saved_results import TuningKey

log = logging.getLogger("penstock")

PATIENCE, SLACK_S = 2.0, 30.0
"""Another's turn is waited for so many times as long as ours may take, and a little: then we measure beside it."""
KEPT_S = 86400.0
"""What ranks of one run tell each other; later ones find what was found in the memo."""
_FOLDER = "tune-ranks"
_FILE_BYTES_MAX = 1 << 20

_asked: Counter[bytes] = Counter()
"""How often each question was answered in this process."""


@dataclass(frozen=True, slots=True)
class _RankTurn:
    key: TuningKey
    run: tuple[int, float]
    """Who started the ranks of this machine, and when that began."""
    number: int


@dataclass(frozen=True, slots=True)
class _RankRecord:
    key: _RankTurn
    findings: TuningFindings


def rank_turn(seconds: float) -> AbstractContextManager[None]:
    """One tuning at a time on this machine, whatever it is of: two at once would measure each other."""
    name = f"{zlib.crc32(platform.node().encode()):08x}.lock"  # a home may be shared by many machines
    return file_lock("tune", name, PATIENCE * seconds + SLACK_S)


def load_shared(key: TuningKey, refresh: bool) -> TuningFindings | None:
    """What need not be measured: because another rank has done so, or, if not all is to be measured anew, a run."""
    if local_rank().world_size == 1:
        return None if refresh else memo.load(key)
    now = _turn(key)
    record = keeping.load_record(_FOLDER, now, _RankRecord, _FILE_BYTES_MAX)
    if record is None and not refresh and (found := memo.load(key)) is not None:
        record = _RankRecord(now, found)
        keeping.store_record(_FOLDER, record)
    if record is None:
        return None
    _asked[_name(key)] += 1
    return record.findings


def store_shared(key: TuningKey, found: TuningFindings) -> None:
    """For later runs, and for the other ranks."""
    if found.complete:
        memo.store(key, found)
    if local_rank().world_size == 1:
        return
    now = _turn(key)
    _clear()
    keeping.store_record(_FOLDER, _RankRecord(now, found))
    _asked[_name(key)] += 1
    if keeping.load_record(_FOLDER, now, _RankRecord, _FILE_BYTES_MAX) is None:
        log.warning(
            "what was found cannot be kept, so every rank measures for itself: let PENSTOCK_CACHE name a folder that "
            "can be written to"
        )


def _turn(key: TuningKey) -> _RankTurn:
    parent = psutil.Process(os.getppid())
    return _RankTurn(key, (parent.pid, parent.create_time()), _asked[_name(key)])


def _name(key: TuningKey) -> bytes:
    return msgspec.json.encode(key)


def _clear() -> None:
    """What runs of other days have left."""
    with suppress(OSError, StorageError):
        for file in cache_dir(_FOLDER).iterdir():
            if time.time() - file.stat().st_mtime > KEPT_S:
                file.unlink(missing_ok=True)


@contextmanager
def own_cores() -> Iterator[None]:
    """This thread, and workers that it starts, on no more cores than the rank's share.

    While one rank measures, the others stand still: with all cores to itself it would find settings for a machine
    that it never has.
    """
    place = local_rank()
    before = os.sched_getaffinity(0) if place.world_size > 1 and hasattr(os, "sched_setaffinity") else set[int]()
    share = rank_cores()
    if len(before) <= share:
        yield
        return
    os.sched_setaffinity(0, worker_cores(share, place.rank))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def warn_of_meetings() -> None:
    """Nothing can be known of what a step does; but one that waits for other ranks never ends here."""
    if (rank_from_torch() or local_rank()).world_size > 1:
        log.warning(
            "step is called on this rank alone, while the others wait: in it, use the model itself "
            "(model.module, not DistributedDataParallel) and no collective"
        )
