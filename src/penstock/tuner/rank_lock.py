"""Ranks of one machine: one of them tunes, on as many cores as it has in training, and all use its result.

The n-th request of a rank for a dataset gets the result of the first rank that made this request for the n-th time, no
matter how far the other ranks are behind. This holds also where everything is measured anew, and if the tuning was cut
short.
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

from penstock.core import user_cache
from penstock.core.cores import rank_cores, worker_cores
from penstock.core.process_lock import file_lock
from penstock.core.ranks import local_rank, rank_from_torch
from penstock.core.user_cache import cache_dir
from penstock.errors import StorageError
from penstock.tuner.result import TuningFindings
from penstock.tuner.saved_results import TuningKey, load_findings, store_findings

log = logging.getLogger("penstock")

WAIT_FACTOR, WAIT_EXTRA_S = 2.0, 30.0
"""A rank waits for another one's tuning this many times the seconds of a tuning, and a little; then it measures too."""
KEPT_S = 86400.0
"""Age at which the results that ranks of one run share are deleted; later runs use the saved results."""
_FOLDER = "tune-ranks"
_FILE_BYTES_MAX = 1 << 20

_request_counts: Counter[bytes] = Counter()
"""How often each request was answered in this process."""


@dataclass(frozen=True, slots=True)
class _SharedKey:
    """The n-th request of a run's ranks."""

    key: TuningKey
    run: tuple[int, float]
    """Process id and start time of the launcher of the ranks on this machine."""
    number: int


@dataclass(frozen=True, slots=True)
class _SharedRecord:
    key: _SharedKey
    findings: TuningFindings


def tuning_lock(seconds: float) -> AbstractContextManager[None]:
    """Allow one tuning at a time on this machine, of whatever dataset: two at once would measure each other."""
    name = f"{zlib.crc32(platform.node().encode()):08x}.lock"  # several machines may share a home folder
    return file_lock("tune", name, WAIT_FACTOR * seconds + WAIT_EXTRA_S)


def load_shared(key: TuningKey, refresh: bool) -> TuningFindings | None:
    """Return the result of another rank or, unless `refresh` is set, of an earlier run; None if there is none."""
    if local_rank().world_size == 1:
        return None if refresh else load_findings(key)
    shared_key = _shared_key(key)
    record = user_cache.load_record(_FOLDER, shared_key, _SharedRecord, _FILE_BYTES_MAX)
    if record is None and not refresh and (found := load_findings(key)) is not None:
        record = _SharedRecord(shared_key, found)
        user_cache.store_record(_FOLDER, record)
    if record is None:
        return None
    _request_counts[_encoded(key)] += 1
    return record.findings


def store_shared(key: TuningKey, found: TuningFindings) -> None:
    """Store a result for later runs, and for the other ranks."""
    if found.complete:
        store_findings(key, found)
    if local_rank().world_size == 1:
        return
    shared_key = _shared_key(key)
    _delete_old()
    user_cache.store_record(_FOLDER, _SharedRecord(shared_key, found))
    _request_counts[_encoded(key)] += 1
    if user_cache.load_record(_FOLDER, shared_key, _SharedRecord, _FILE_BYTES_MAX) is None:
        log.warning(
            "the result of the tuning cannot be stored, so every rank measures for itself: set PENSTOCK_CACHE to a "
            "folder that can be written"
        )


def _shared_key(key: TuningKey) -> _SharedKey:
    parent = psutil.Process(os.getppid())
    return _SharedKey(key, (parent.pid, parent.create_time()), _request_counts[_encoded(key)])


def _encoded(key: TuningKey) -> bytes:
    return msgspec.json.encode(key)


def _delete_old() -> None:
    """Delete the shared results of runs on other days."""
    with suppress(OSError, StorageError):
        for file in cache_dir(_FOLDER).iterdir():
            if time.time() - file.stat().st_mtime > KEPT_S:
                file.unlink(missing_ok=True)


@contextmanager
def restrict_to_rank_cores() -> Iterator[None]:
    """Keep this thread, and workers that it starts, on no more cores than the rank's share.

    While one rank measures, the others wait: with all cores it would find settings for a machine that it does not have
    in training.
    """
    rank = local_rank()
    before = os.sched_getaffinity(0) if rank.world_size > 1 and hasattr(os, "sched_setaffinity") else set[int]()
    share = rank_cores()
    if len(before) <= share:
        yield
        return
    os.sched_setaffinity(0, worker_cores(share, rank.rank))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def warn_about_collectives() -> None:
    """Warn on a run of several ranks: a step that waits for other ranks would never return here."""
    if (rank_from_torch() or local_rank()).world_size > 1:
        log.warning(
            "step is called on this rank alone, while the others wait: in it, use the model itself "
            "(model.module, not DistributedDataParallel) and no collective"
        )
